"""Runs that are submitted from a cell: they outlive the kernel, and any kernel follows them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from notebook_kernels import HERE, REPOSITORY, Kernel, wait_until
from notebook_standin import StandInPolicy, asker, says_yes, tasks

import lightning_lab as ll
from lightning_lab.cluster import (
    HeadUnreachableError,
    JobDiedError,
    JobFolder,
    ProgramError,
    UnknownRunError,
    Workers,
    WorkersMissingError,
    jobs_at,
)
from lightning_lab.notebook import Lab
from lightning_lab.notebook.attached import AttachedRun, JobStore

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


SLOW = "lab = ll.Lab(StandInPolicy(delay_s=0.2), runs='runs', concurrency=2)"
ENDLESS = """
trainer = ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=1, checkpoint_every=1)
run = trainer.fit(steps=10_000)
"""


@pytest.mark.timeout(600)
async def test_submitted_runs_are_stopped_cancelled_and_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(REPOSITORY), str(HERE), os.environ.get("PYTHONPATH", ""))))
    lab = Lab(StandInPolicy(), runs=tmp_path / "runs")
    runs = [lab._submissions.submit(ENDLESS, [IMPORTS, SLOW], Workers()) for _ in range(3)]
    stopped, cancelled, killed = runs
    try:
        for run in runs:
            wait_until(lambda run=run: run.source.begun, f"{run.id} to begin", 180)
        stopped.stop()
        cancelled.cancel()
        wait_until(lambda: len(killed.steps()), "a step", 180)
        os.kill(killed.source.job.read("begun")["pid"], signal.SIGKILL)
        with pytest.raises(JobDiedError, match=r"(?s)died \(failed\).*trainer\.resume.*killed \(SIGKILL\)"):
            await killed
        assert killed.state == "failed"
        for run in (stopped, cancelled):
            await run
            assert (run.state, run.job.state, run.done) == ("stopped", "succeeded", True)
        assert "Stopped on request" in stopped.record.reason and "Cancelled" in cancelled.record.reason
        steps = len(killed.steps())
    finally:
        for run in runs:
            run.cancel()
        lab.close()
    lab = Lab(StandInPolicy(), runs=tmp_path / "runs", resume=killed.id)
    try:
        trainer = ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=1, checkpoint_every=1)
        assert (await trainer.resume(killed.id, steps=steps + 1)).state == "finished"
        assert [step.index for step in lab.store.steps(killed.id)] == list(range(steps + 1))
    finally:
        lab.close()


async def test_a_cluster_that_is_gone_is_named_and_how_its_runs_ended_is_still_known(
    tmp_path: Path, open_lab: Callable[..., Lab]
) -> None:
    lab = open_lab()
    job = JobFolder.create(tmp_path / "runs", "01A", "…", cluster="http://127.0.0.1:9", cwd=".", workers={})
    with pytest.raises(HeadUnreachableError, match="does not answer"):
        lab.attach("01A")
    run = AttachedRun(JobStore(job, lab), jobs_at("http://127.0.0.1:9"), lab.show)
    assert run.state == "unreachable" and "unreachable" in repr(run)
    with pytest.raises(HeadUnreachableError, match=r"does not answer.*Run 01A was followed there.*trainer\.resume"):
        await run
    job.write("ended", {"exit_code": 1, "error": "ValueError: no"})
    assert lab.attach("01A").state == "failed" and lab.attach("01A") is lab.attach("01A")
    with pytest.raises(JobDiedError, match=r"before its run began\. ValueError: no"):
        await lab.attach("01A")
