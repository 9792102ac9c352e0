"""A lab whose gateway and store's writer are a process of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from notebook_standin import StandInPolicy, asker, says_yes, tasks

from lightning_lab.notebook import Lab, Trainer
from lightning_lab.store import open_run


async def test_a_lab_works_the_same_with_its_gateway_outside(open_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = open_lab(StandInPolicy(), gateway="process")
    assert (await lab.run(asker, "Is it?", grader=says_yes)).reward == 1.0
    run = await Trainer(lab, asker, tasks(), says_yes, n=2, groups=1).fit(steps=2)  # one says yes, the other no
    assert (run.state, lab.status.version, lab.status.in_flight) == ("finished", 2, 0)
    counts = lab.store.counts(run.id)
    assert (counts["succeeded"], counts["calls"]) == (4, 4)
    calls = [call for row in lab.store.rollouts(run.id) for call in lab.store.calls(row.id)]
    assert {version for call in calls for version in call.versions.tolist()} == {0, 1}
    with open_run(run.export(tmp_path / "run.llab")) as exported:
        assert exported.counts(run.id) == counts
    lab.close()
    assert len(lab.rollouts()) == 5


def test_a_gateway_is_a_thread_or_a_process(open_lab: Callable[..., Lab], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'thread' or in a 'process'"):
        open_lab(gateway="elsewhere")
    assert not (tmp_path / "runs").exists()
