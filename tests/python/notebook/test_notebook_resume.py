"""Runs that go on after their kernel died, at whatever moment: nothing lost, nothing done twice, nothing left."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from notebook_kernels import wait_until
from notebook_standin import StandInPolicy, asker, says_yes, tasks

import lightning_lab as ll
from lightning_lab.notebook import Lab, ResumeError
from lightning_lab.notebook.parts import lab_folder_of
from lightning_lab.store import Store, StoreError

SCRIPT = Path(__file__).with_name("notebook_chaos.py")
STEPS, N, GROUPS = 8, 3, 2


def start_kernel(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(SCRIPT), str(folder)], stdout=subprocess.PIPE, text=True)


def first_line(kernel: subprocess.Popen[str]) -> str:
    assert kernel.stdout is not None
    return kernel.stdout.readline().strip()


def processes_of(folder: Path) -> list[psutil.Process]:
    """Everything alive that works for this run, by its command line or its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            texts = [*process.cmdline(), *process.environ().values()]
            if process.status() != psutil.STATUS_ZOMBIE and any(str(folder) in text for text in texts):
                found.append(process)
        except psutil.Error:
            continue
    return found


def killed_at_random_moments(folder: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    for _ in range(kills):
        kernel = start_kernel(folder)
        if first_line(kernel) != "training":
            pytest.fail("the kernel did not come up")
        time.sleep(moments.uniform(0, 1.0))
        kernel.send_signal(signal.SIGKILL)
        kernel.wait()
        wait_until(lambda: not processes_of(folder), f"processes to end: {processes_of(folder)}", 20)
    kernel = start_kernel(folder)
    assert first_line(kernel) == "training" and first_line(kernel) == "finished"
    assert kernel.wait(60) == 0


def check_nothing_lost_or_repeated(folder: Path) -> None:
    run_id = (folder / "run").read_text()
    with Store(lab_folder_of(folder / "runs", run_id).store_path, read_only=True) as store:
        assert store.run(run_id).state == "finished"
        steps = store.steps(run_id)
        assert [step.index for step in steps] == list(range(STEPS))
        rollouts = store.rollouts(run_id, mode="train")
        consumed = Counter(rollout_id for step in steps for rollout_id in step.rollout_ids)
        assert set(consumed.values()) == {1} and set(consumed) == {rollout.id for rollout in rollouts}
        groups = Counter(rollout.group_id for rollout in rollouts)
        assert set(groups.values()) == {N} and len(groups) >= STEPS * GROUPS
        assert sorted(int(group.rpartition("-")[2]) for group in groups) == list(range(len(groups)))
        versions = [event.data["version"] for event in store.events(run_id=run_id, kind="policy")]
        assert versions == sorted(set(versions)), "a version was used twice"
        kept = {call.request_id for rollout in rollouts for call in store.calls(rollout.id)}
        acknowledged = set((folder / "acknowledged").read_text().split())
        assert acknowledged <= kept and len(acknowledged) >= 2 * len(rollouts)
        path = store.path
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert processes_of(folder) == []


def test_a_kernel_killed_at_random_moments_loses_and_repeats_nothing(tmp_path: Path) -> None:
    killed_at_random_moments(tmp_path, kills=4, seed=1)
    check_nothing_lost_or_repeated(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills(tmp_path: Path) -> None:
    killed_at_random_moments(tmp_path, kills=20, seed=2)
    check_nothing_lost_or_repeated(tmp_path)


def test_a_run_that_another_kernel_holds_is_not_taken_from_it(tmp_path: Path) -> None:
    kernel = start_kernel(tmp_path)
    try:
        assert first_line(kernel) == "training"
        run_id = (tmp_path / "run").read_text()
        with pytest.raises(StoreError, match=f"pid {kernel.pid}"):
            Lab(StandInPolicy(), runs=tmp_path / "runs", resume=run_id)
        assert kernel.poll() is None
    finally:
        kernel.kill()
        kernel.wait()


async def test_a_stopped_run_goes_on_in_the_same_lab(open_lab: Callable[..., Lab]) -> None:
    lab = open_lab()
    trainer = ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=2, checkpoint_every=1)
    run = trainer.fit(steps=4)
    wait_until(lambda: bool(lab.store.steps(run.id)), "a step")
    run.stop()
    await run
    done = len(lab.store.steps(run.id))
    again = trainer.resume(run.id, steps=done + 2)
    await again
    assert again.id == run.id and lab.store.run(run.id).state == "finished"
    assert [step.index for step in lab.store.steps(run.id)] == list(range(done + 2))
    assert lab.store.run(run.id).settings["steps"] == done + 2


async def test_another_experiment_is_refused_by_name(open_lab: Callable[..., Lab]) -> None:
    lab = open_lab()
    run = ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=1, checkpoint_every=1).fit(steps=1)
    await run
    other = ll.Trainer(lab, asker, tasks(9), says_yes, n=3, groups=1)
    with pytest.raises(ResumeError, match=r"hashes.*n: 2, now 3"):
        other.resume(run.id)
    with pytest.raises(ResumeError, match="does not hold the run nothing"):
        other.resume("nothing")
    with pytest.raises(ResumeError, match="kind 'single'"):
        await lab.run(asker, "hello")
        other.resume(lab.singles.run_id)


async def test_without_a_checkpoint_a_policy_that_has_learned_is_refused(open_lab: Callable[..., Lab]) -> None:
    lab = open_lab()
    trainer = ll.Trainer(lab, asker, tasks(), says_yes, n=4, groups=2)
    run = trainer.fit(steps=3)
    await run
    assert lab.status.version > 0
    with pytest.raises(ResumeError, match="no checkpoint"):
        trainer.resume(run.id, steps=5)
