"""Runs that go on after their kernel died, at whatever moment: nothing lost, nothing done twice, nothing left."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest
from notebook_kernels import wait_until
from notebook_standin import StandInPolicy, asker, says_yes, tasks

import lightning_lab as ll
from lightning_lab.notebook import Lab, ResumeError
from lightning_lab.notebook.parts import lab_folder_of
from lightning_lab.policy.base import PolicyError
from lightning_lab.records import AgentResult, Sampling
from lightning_lab.store import Store, StoreError
from lightning_lab.training import CheckpointError

SCRIPT = Path(__file__).with_name("notebook_chaos.py")
STEPS, N, GROUPS = 8, 3, 2


def start_kernel(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    )


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
    assert leftovers(folder) == [], "each lab removes what a killed one left, and its own"


def leftovers(folder: Path) -> list[Path]:
    """Folders in which rollouts work."""
    return [*folder.glob("lightning-lab-*")]


def test_a_kernel_killed_at_random_moments_loses_and_repeats_nothing(tmp_path: Path) -> None:
    killed_at_random_moments(tmp_path, kills=4, seed=1)
    check_nothing_lost_or_repeated(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills(tmp_path: Path) -> None:
    killed_at_random_moments(tmp_path, kills=20, seed=2)
    check_nothing_lost_or_repeated(tmp_path)


async def test_a_run_that_another_kernel_holds_is_not_taken_from_it(
    tmp_path: Path, open_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kernel = start_kernel(tmp_path)
    try:
        assert first_line(kernel) == "training"
        run_id = (tmp_path / "run").read_text()
        with pytest.raises(StoreError, match=f"pid {kernel.pid}"):
            Lab(StandInPolicy(), runs=tmp_path / "runs", resume=run_id)
        assert kernel.poll() is None
        held = leftovers(tmp_path)
        assert len(held) == 1, "the folder of a lab that lives is left alone"
    finally:
        kernel.kill()
        kernel.wait()
    wait_until(lambda: not processes_of(tmp_path), "processes to end")
    assert leftovers(tmp_path) == held
    lab = open_lab(resume=run_id)
    assert lab.store.run(run_id).state == "running" and held[0] not in leftovers(tmp_path)


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


class Moving(StandInPolicy):
    """Its weights are other ones after each publish, as those of a policy that really learns."""

    def fingerprint(self) -> Mapping[str, str]:
        return {"model": f"weights-{self.version}"}


async def test_a_second_run_goes_on_though_its_policy_has_learned(open_lab: Callable[..., Lab]) -> None:
    """In the lab where it was made, and in that one opened again, whose policy has the first weights."""
    lab = open_lab(Moving())
    await ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=1, checkpoint_every=1).fit(steps=2)
    again = ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=1, checkpoint_every=1)
    second = again.fit(steps=1)
    await second
    assert second.manifest["hashes"]["model"] == "weights-2"
    await again.resume(second.id, steps=2)
    kept_nothing = ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=1).fit(steps=1)
    await kept_nothing
    lab.close()
    lab = open_lab(Moving(), resume=second.id)
    assert lab.status.version == 0
    await ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=1, checkpoint_every=1).resume(second.id, steps=3)
    assert [step.index for step in lab.store.steps(second.id)] == [0, 1, 2]
    lab.close()
    lab = open_lab(Moving(), resume=kept_nothing.id)
    with pytest.raises(ResumeError, match=r"no checkpoint.* began when an earlier one had trained"):
        ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=1).resume(kept_nothing.id, steps=2)


@ll.harness
def dice(task: object) -> str:
    """A model call whose answer is not looked at."""
    ask(task)
    return str(random.SystemRandom().random())


@ll.grader
def number(task: object, result: AgentResult) -> float:
    return float(result.output)


ask = asker.function


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def rewritten(**changes: object) -> Callable[[Path], None]:
    return lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), **changes})) and None


BAD = [
    ("loop.json", cut_in_half, "loop.json is damaged"),
    ("loop.json", rewritten(schema_version=99), "schema version 99"),
    ("loop.json", rewritten(run_id="01OTHER"), "belongs to the run 01OTHER"),
    ("policy/model.safetensors", cut_in_half, "is damaged"),
    ("policy/optimizer.safetensors", cut_in_half, "is damaged"),
    ("policy/policy.json", rewritten(architecture="0"), "belongs to another model"),
    ("policy/policy.json", rewritten(format=99), "has format 99"),
]


@pytest.mark.timeout(300)
async def test_a_checkpoint_that_is_of_no_use_is_named_and_nothing_is_lost(open_lab: Callable[..., Lab]) -> None:
    lab = open_lab(ll.Policy.torch("quickstart"))
    trainer = ll.Trainer(lab, dice, tasks(), number, n=2, groups=1, checkpoint_every=1, sampling=Sampling(max_tokens=2))
    run = trainer.fit(steps=2)
    await run
    latest = lab.path.parent / run.id / "checkpoints" / "step-00000002"
    whole = latest.with_name("whole")
    shutil.copytree(latest, whole)
    before = lab.store.run(run.id), lab.store.steps(run.id)
    for name, spoil, words in BAD:
        spoil(latest / name)
        with pytest.raises(CheckpointError, match=f"(?s)step-00000002 cannot be used.*{words}.*from step-00000001"):
            trainer.resume(run.id, steps=3)
        assert (lab.store.run(run.id), lab.store.steps(run.id)) == before and lab.active_run is None
        shutil.rmtree(latest)
        shutil.copytree(whole, latest)
    shutil.rmtree(latest)
    shutil.rmtree(whole)
    await trainer.resume(run.id, steps=3)
    assert [step.index for step in lab.store.steps(run.id)] == [0, 1, 2] and lab.status.version == 4


async def test_a_run_of_a_newer_version_is_left_alone(open_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = open_lab()
    run = ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=1).fit(steps=1)
    await run
    lab.close()
    manifest = tmp_path / "runs" / run.id / "manifest.json"
    rewritten(schema_version=99)(manifest)
    with pytest.raises(StoreError, match="schema version 99, this Lightning Lab reads"):
        open_lab(resume=run.id)
    assert json.loads(manifest.read_text())["schema_version"] == 99


async def test_a_policy_that_only_answers_leaves_no_run_behind(open_lab: Callable[..., Lab], tmp_path: Path) -> None:
    policy = StandInPolicy()
    policy.can_learn = False
    lab = open_lab(policy)
    with pytest.raises(PolicyError, match="only answers"):
        ll.Trainer(lab, asker, tasks(), says_yes).fit(steps=1)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [lab.id]
    assert lab.store.runs() == [] and lab.active_run is None
