"""Checkpoints: complete or absent, and enough to go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from training_fakes import Bandit, FakeLab

from lightning_lab.training import CheckpointError, TrainingLoop, latest_checkpoint, load_checkpoint


def test_a_run_goes_on_from_its_checkpoint(lab: FakeLab, make_loop: Callable[..., TrainingLoop]) -> None:
    make_loop(steps=5, checkpoint_every=2, keep_checkpoints=2).run()
    root = lab.folder.checkpoints
    assert sorted(path.name for path in root.iterdir()) == ["step-00000004", "step-00000005"]
    latest = latest_checkpoint(root)
    assert latest is not None
    other = Bandit()
    state = load_checkpoint(other, latest, run_id="run")
    assert torch.equal(other.logits, lab.policy.logits)
    assert (state.step, state.cursor, state.version, state.run_id) == (5, 10, lab.policy.version, "run")
    assert state.store_seq == next(
        e.seq for e in lab.store.events(run_id="run", kind="step") if e.subject.endswith("4")
    )
    assert make_loop(steps=7, loop={"resume_from": state}).run().state == "finished"
    assert [step.index for step in lab.store.steps("run")] == list(range(7))
    tasks = [rollout.task.id for rollout in lab.store.rollouts("run")][::4]
    assert len(set(tasks[:10])) == 10, "the pass goes on where it stopped"


def test_a_save_that_fails_leaves_the_last_one(
    lab: FakeLab, make_loop: Callable[..., TrainingLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_loop(steps=1, checkpoint_every=1).run()

    def full_disk(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise OSError("No space left on device")

    monkeypatch.setattr(lab.policy, "save", full_disk)
    final = make_loop(steps=1, checkpoint_every=1).run()
    assert final.state == "failed" and "No space left on device" in final.reason and "Free space" in final.reason
    latest = latest_checkpoint(lab.folder.checkpoints)
    assert latest is not None and load_checkpoint(Bandit(), latest, run_id="run").step == 1


GOOD = {"step": 3, "cursor": 6, "version": 3, "seed": 0, "store_seq": 9, "run_id": "run", "schema_version": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ('{"step": 1', "delimiter"),
        ("[]", "holds no object"),
        (json.dumps({**GOOD, "schema_version": 99}), "schema version 99, this Lightning Lab reads 1"),
        (json.dumps({"schema_version": 1, "step": 3}), "missing"),
        (json.dumps({**GOOD, "cursor": "6"}), "no number"),
        (json.dumps({**GOOD, "run_id": "other"}), "belongs to the run other"),
        (json.dumps(GOOD), "logits.json"),
    ],
)
def test_a_checkpoint_that_is_of_no_use_says_why_and_how_to_go_on(tmp_path: Path, text: str | None, words: str) -> None:
    assert latest_checkpoint(tmp_path / "none") is None
    bad = tmp_path / "step-00000003"
    (bad / "policy").mkdir(parents=True)
    if text is not None:
        (bad / "loop.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"(?s)step-00000003 cannot be used.*{words}.*from the first step"):
        load_checkpoint(Bandit(), bad, run_id="run")
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "loop.json").write_text("{}")
    with pytest.raises(CheckpointError, match="Move that folder away to go on from step-00000002"):
        load_checkpoint(Bandit(), bad, run_id="run")
