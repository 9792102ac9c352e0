"""Runs that are submitted from a cell: they outlive the kernel, and any kernel follows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from notebook_kernels import Kernel, wait_until
from notebook_standin import StandInPolicy

from lightning_lab.cluster import JobDiedError, ProgramError, UnknownRunError, Workers, WorkersMissingError
from lightning_lab.cluster.folder import JobFolder
from lightning_lab.notebook import Lab

IMPORTS = "import lightning_lab as ll\nfrom notebook_standin import StandInPolicy, asker, says_yes, tasks"
OPEN = "lab = ll.Lab(StandInPolicy(), runs='runs', concurrency=4)"
CELL = """%%submit
trainer = ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=2)
run = trainer.fit(steps=2)
print("the job trains", run.id)
"""
FOLLOW = """
run = lab.attach({run_id!r})
await run
assert lab.attach({run_id!r}) is run
counts = lab.on_show.source.store.counts(run.id)
shown = lab.on_show.now().run["id"]
print(run.state, len(run.rollouts()), counts["succeeded"], counts["calls"], len(run.steps()), shown)
"""


@pytest.mark.timeout(600)
def test_a_submitted_run_outlives_its_kernel_and_another_one_shows_it(tmp_path: Path) -> None:
    first = Kernel(tmp_path)
    try:
        for cell in (IMPORTS, OPEN, "lab.connect('local')", CELL):
            first.run(cell, 150)
        [folder] = (tmp_path / "runs" / "jobs").iterdir()
        process = first.process()
        process.kill()
        process.wait()
    finally:
        first.close()
    run_id = folder.name
    program = (folder / "program.py").read_text()
    assert program.startswith(IMPORTS) and OPEN in program and "%%submit" not in program
    second = Kernel(tmp_path)
    try:
        for cell in (IMPORTS, OPEN):
            second.run(cell, 150)
        said = second.run(FOLLOW.format(run_id=run_id), 150).split()
        assert said == ["finished", "8", "8", "8", "2", run_id]
        wait_until(
            lambda: any(
                frame["content"]["data"]["run"]
                and frame["content"]["data"]["run"]["id"] == run_id
                and frame["content"]["data"]["counters"]["succeeded"] == 8
                for frame in second.frames()
            ),
            "the panel to show the submitted run's counts",
        )
        assert f"the job trains {run_id}" in second.run("print(run.log())")
        second.run("lab.close()")
    finally:
        second.close()
    assert json.loads((folder / "ended.json").read_text()) == {"exit_code": 0, "error": ""}


async def test_what_cannot_be_sent_is_named_and_a_job_that_dies_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lab = Lab(StandInPolicy(), runs=tmp_path / "runs")
    try:
        submit = lab._submissions.submit
        with pytest.raises(ProgramError, match="trains nothing"):
            submit("x = 1", [], Workers())
        with pytest.raises(WorkersMissingError, match="64 GPUs are asked for"):
            submit("trainer.fit(steps=1)", [], Workers(gpus=64))
        with pytest.raises(UnknownRunError, match="'01NONE'"):
            lab.attach("01NONE")
        assert not (tmp_path / "runs" / "jobs").exists()
        run = submit("raise MemoryError('too large')\ntrainer.fit(steps=1)", [], Workers())
        with pytest.raises(JobDiedError, match=r"ended before its run began. MemoryError: too large"):
            await run
        assert run.state == "failed" and run.done and "MemoryError" in run.log()
        assert JobFolder.open(tmp_path / "runs", run.id).read("ended")["exit_code"] == 1
    finally:
        lab.close()
