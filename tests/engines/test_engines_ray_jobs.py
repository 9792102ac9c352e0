"""Cells that are submitted to a real Ray: followed from elsewhere, stopped, cancelled, killed, left without a head."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from engines_ray_head import RayHead
from engines_verl_agent import asker, numerate

import lightning_lab as ll
from lightning_lab.cluster import HeadUnreachableError, JobDiedError, Workers, WorkersMissingError
from lightning_lab.notebook import Lab
from lightning_lab.notebook.attached import AttachedRun
from lightning_lab.policy.verl import VerlLearner
from lightning_lab.policy.verl.errors import ClusterError

pytestmark = pytest.mark.timeout(900)

HERE = Path(__file__).parent
IMPORTS = "import lightning_lab as ll\nfrom engines_verl_agent import asker, numerate"
TASKS = "tasks = ll.tasks.reasoning_gym('chain_sum', 40, seed=0)"
EMBEDDED = "lab = ll.Lab(ll.Policy.torch('quickstart'), runs={runs!r}, concurrency=2)"
ON_RAY = "lab = ll.Lab(ll.Policy.torch('quickstart', learner=ll.Learner.verl(1)), runs={runs!r}, concurrency=2)"
CELL = """
trainer = ll.Trainer(lab, asker, tasks, numerate, n=2, groups=2, checkpoint_every=1,
                     sampling=ll.Sampling(max_tokens=8))
run = trainer.fit(steps={steps})
print("the job trains", run.id)
"""


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    made = RayHead()
    yield made
    made.end()


@pytest.fixture
def runs(head: RayHead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of all labs of a test. Jobs find the agent's module beside this file, as it would be in a notebook's
    folder."""
    monkeypatch.chdir(HERE)
    for name, value in head.variables.items():
        monkeypatch.setenv(name, value)
    return str(tmp_path / "runs")


@pytest.fixture
def lab(runs: str) -> Iterator[Lab]:
    made = ll.Lab(ll.Policy.torch("quickstart"), runs=runs)
    yield made
    made.close()


def submitted(lab: Lab, runs: str, head: RayHead, opening: str, steps: int) -> AttachedRun:
    lab.connect(head.url, python=sys.executable)
    earlier = [IMPORTS, TASKS, opening.format(runs=runs)]
    return lab._submissions.submit(CELL.format(steps=steps), earlier, Workers())


def wait_until(holds: Callable[[], bool], run: AttachedRun, timeout_s: float = 400.0) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert not run.done and time.monotonic() < end, run.log()[-3000:]
        time.sleep(0.2)


def trains(run: AttachedRun) -> bool:
    return run.source.begun and len(run.steps()) > 0


async def test_a_cell_trains_on_the_cluster_and_another_lab_follows_it(head: RayHead, runs: str) -> None:
    """Its learner is a rank in the same cluster. The lab that sent it is closed at once."""
    first = ll.Lab(ll.Policy.torch("quickstart"), runs=runs)
    run_id = submitted(first, runs, head, ON_RAY, steps=2).id
    first.close()
    second = ll.Lab(ll.Policy.torch("quickstart"), runs=runs)
    try:
        run = second.attach(run_id)
        assert run.state in ("queued", "running") and not run.done
        await run
        assert (run.state, run.job.state) == ("finished", "succeeded")
        assert len(run.rollouts()) == 8 and run.rollouts()["reward"].notna().all()
        assert [math.isfinite(loss) for loss in run.steps()["loss"]] == [True, True]
        assert f"the job trains {run_id}" in run.log()
        assert second.on_show.now().run["id"] == run_id and second.on_show.source.store.counts(run_id)["succeeded"] == 8
        assert second.attach(run_id) is run
    finally:
        second.close()


async def test_a_run_is_stopped_cancelled_and_missed_when_it_is_killed(head: RayHead, runs: str, lab: Lab) -> None:
    """The one that is cancelled has a rank in the cluster, which has to close too."""
    openings = EMBEDDED, ON_RAY, EMBEDDED
    stopped, cancelled, killed = (submitted(lab, runs, head, opening, steps=10_000) for opening in openings)
    for run in (stopped, cancelled, killed):
        wait_until(lambda run=run: trains(run), run)
    stopped.stop()
    cancelled.cancel()
    os.kill(killed.source.job.read("begun")["pid"], signal.SIGKILL)
    with pytest.raises(JobDiedError, match=r"(?s)died \(failed\).*trainer\.resume.*killed \(SIGKILL\).*out of memory"):
        await killed
    for run in (stopped, cancelled):
        await run
        assert run.state == "stopped"
    assert "Stopped on request" in stopped.record.reason and cancelled.record.reason


def test_workers_that_the_cluster_has_not_are_refused(head: RayHead, runs: str, lab: Lab) -> None:
    lab.connect(head.url, python=sys.executable)
    with pytest.raises(
        WorkersMissingError, match="8 A100 GPUs are asked for, and the cluster has 0 GPUs on 1 machines"
    ):
        lab._submissions.submit("trainer.fit(steps=1)", [], Workers(gpus=8, kind="A100"))
    trainer = ll.Trainer(lab, asker, ll.tasks.reasoning_gym("chain_sum", 8, seed=0), numerate)
    with pytest.raises(WorkersMissingError):
        trainer.fit(1, workers=Workers(gpus=8, kind="A100"))
    assert not lab.store.runs()


def test_a_learner_that_cannot_join_is_told_why(head: RayHead, runs: str) -> None:
    other = VerlLearner("quickstart", address=head.address)
    with head.said_to_run("2.41.0"), pytest.raises(ClusterError, match=r"(?s)other versions.*2\.41\.0.*python=…"):
        other.start()
    greedy = VerlLearner("quickstart", ranks=512, device="cuda", address=head.address)
    with pytest.raises(ClusterError, match="has 0 GPUs on its nodes, and 512 ranks on 1 node"):
        greedy.start()


async def test_a_head_that_is_gone_while_a_run_is_followed_is_named_and_the_run_goes_on(
    head: RayHead, runs: str, lab: Lab
) -> None:
    """The last of this file: the head does not come back."""
    run = submitted(lab, runs, head, EMBEDDED, steps=10_000)
    wait_until(lambda: trains(run), run)
    process = psutil.Process(run.source.job.read("begun")["pid"])
    head.kill()
    with pytest.raises(HeadUnreachableError, match=r"does not answer.*trainer\.resume"):
        await run
    assert run.state == "unreachable"
    psutil.wait_procs([process], timeout=60)  # by Ray's own guard of the job, which outlives it
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    steps = len(run.steps())
    lab.close()
    again = ll.Lab(ll.Policy.torch("quickstart"), runs=runs, resume=run.id, concurrency=2)
    try:
        tasks = ll.tasks.reasoning_gym("chain_sum", 40, seed=0)
        sampling = ll.Sampling(max_tokens=8)
        trainer = ll.Trainer(again, asker, tasks, numerate, n=2, groups=2, checkpoint_every=1, sampling=sampling)
        assert (await trainer.resume(run.id, steps=steps + 1)).state == "finished"
        assert [step.index for step in again.store.steps(run.id)] == list(range(steps + 1))
    finally:
        again.close()
