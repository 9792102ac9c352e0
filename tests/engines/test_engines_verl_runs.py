"""Whole runs: vLLM samples, two ranks of verl learn; and what is left of a run when a part of the learner dies."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from engines_server import TAKES_WEIGHTS, send_by, socket_of
from engines_verl_agent import asker, numerate
from engines_verl_rows import make_rows

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.policy.torch.checkpoint import load_weights
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.verl import VerlLearner
from lightning_lab.policy.vllm import VllmPolicy

MODEL = "quickstart"
RANKS = 2

pytestmark = pytest.mark.timeout(900)


class Bench:
    """A lab whose servers are vLLM's and whose learner is two ranks, and its trainer; opened again where a test breaks
    the learner. The server outlives the lab."""

    def __init__(self, runs: Path, url: str, ranks: VerlLearner) -> None:
        self._runs, self._url = runs, url
        self._open(VllmPolicy(MODEL, url=url, learner=ranks, collocated=True))

    def open_again(self, run_id: str) -> None:
        learner = ll.Learner.verl(RANKS, collocated=True)
        self._open(ll.Policy.vllm(MODEL, url=self._url, learner=learner, collocated=True), resume=run_id)

    def _open(self, policy: Any, resume: str | None = None) -> None:
        self.lab = ll.Lab(policy=policy, runs=self._runs, resume=resume)
        tasks = ll.tasks.reasoning_gym("chain_sum", 40, seed=0)
        self.trainer = ll.Trainer(
            self.lab,
            asker,
            tasks,
            numerate,
            n=4,
            groups=2,
            learning_rate=1e-3,
            checkpoint_every=1,
            sampling=ll.Sampling(max_tokens=24),
        )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, ranks: VerlLearner) -> Iterator[Bench]:
    servers = VllmPolicy(MODEL, kv_bytes=2**28, threads=1, options=TAKES_WEIGHTS)
    try:
        servers.start()
        made = Bench(tmp_path_factory.mktemp("runs"), socket_of(servers), ranks)
        yield made
        made.lab.close()
    finally:
        servers.close()


def learner_of(lab: Lab) -> VerlLearner:
    learner = lab.open_parts().policy._learner
    assert isinstance(learner, VerlLearner)
    return learner


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 300.0) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.1)


def wait_for_checkpoint(lab: Lab, run_id: str) -> None:
    """The first step is done; the agents of the second are at work."""
    checkpoint = lab.open_parts().folder.path.parent / run_id / "checkpoints" / "step-00000001"
    wait_until(checkpoint.is_dir, "the first step")


def wait_for_update(lab: Lab, run_id: str) -> None:
    """The second update is under way, and a rank that stands still keeps it there."""

    def updating() -> bool:
        phase = lab.store.events(run_id=run_id, kind="phase")[-1].data
        return (phase["phase"], phase["step"]) == ("updating", 1)

    wait_until(updating, "an update to begin")
    time.sleep(0.5)


def test_three_optimiser_steps_are_those_of_the_embedded_learner(bench: Bench, tmp_path: Path) -> None:
    """AdamW, clipped, with a KL to the model as it was: what one step leaves behind is what the next begins with."""
    embedded, ranks = DetachedTorchLearner(MODEL, threads=1), learner_of(bench.lab)
    embedded.start()
    ranks.save(tmp_path / "begun")
    embedded.export(tmp_path / "first")
    first = load_weights(tmp_path / "first")
    options = {"kl_coef": 0.1, "max_grad_norm": 0.5, "weight_decay": 0.01}
    rows = make_rows()
    for step in range(3):
        asked: dict[str, Any] = {"loss": "ppo_clip", "options": options, "learning_rate": 3e-4}
        one, other = embedded.update([rows], **asked), ranks.update([rows[:4], rows[4:]], **asked)
        for name in ("loss", "grad_norm", "reference_kl", "approx_kl", "entropy"):
            assert other.metrics[name] == pytest.approx(one.metrics[name], rel=1e-3, abs=1e-6), (step, name)
    assert other.metrics["reference_kl"] > 0
    embedded.export(tmp_path / "embedded")
    ranks.export(tmp_path / "ranks")
    expected, found = load_weights(tmp_path / "embedded"), load_weights(tmp_path / "ranks")
    moved = torch.sqrt(sum(((expected[name] - first[name]) ** 2).sum() for name in expected))
    apart = torch.sqrt(sum(((expected[name] - found[name]) ** 2).sum() for name in expected))
    assert float(apart / moved) < 1e-3
    ranks.load(tmp_path / "begun")
    ranks.export(tmp_path / "again")
    for name, weight in load_weights(tmp_path / "again").items():
        assert torch.equal(weight, first[name]), name


def test_three_updates_reach_the_server(bench: Bench, tmp_path: Path) -> None:
    """From the agent's call to the weights on the server, which sleeps while the ranks learn."""
    lab = bench.lab
    run = bench.trainer.fit(steps=3)
    assert run.join(600)
    assert (run.state, run.record.reason) == ("finished", "")
    steps = lab.store.steps(run.id)
    assert [(step.version, step.skipped) for step in steps] == [(1, ""), (2, ""), (3, "")]
    for step in steps:
        assert math.isfinite(step.metrics["loss"]) and math.isfinite(step.metrics["reward"])
        assert step.metrics["grad_norm"] > 0
        assert step.metrics["logprob_diff_max"] < 1e-3  # the ranks read what the server sampled
        assert step.metrics["parity_logprob_max"] < 1e-3  # the server samples what the ranks learned
    learner = learner_of(lab)
    learner.export(tmp_path)
    learned, first = load_weights(tmp_path), load_weights(learner.directory)
    served = load_weights(lab.open_parts().policy._weights.current)
    assert learned.keys() == served.keys()
    for name, weight in learned.items():
        assert torch.equal(weight, served[name]), name
    assert any(not torch.equal(weight, first[name]) for name, weight in learned.items())


def test_the_ranks_send_what_they_learned_to_the_server(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 does, in a group with it; what the others hold of the weights is gathered there."""
    policy, learner = bench.lab.open_parts().policy, learner_of(bench.lab)
    send_by(policy, learner, monkeypatch)
    rows = make_rows()
    for _ in range(2):
        result = policy.update([rows], loss="ppo_clip", options={}, learning_rate=1e-3)
        told = policy.publish(policy.version + 1)
        assert not result.metrics["skipped"] and told["parity_logprob_max"] < 1e-3
    meeting = learner.invite(1, towards="", deadline_s=60.0)
    socket.create_connection((meeting["host"], meeting["port"])).close()
    learner.leave()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((meeting["host"], meeting["port"]))


def test_a_rank_that_dies_in_an_update_costs_no_step_of_the_run(bench: Bench) -> None:
    """The rank is stopped first, so that it surely dies in the middle."""
    lab, trainer = bench.lab, bench.trainer
    run = trainer.fit(steps=2)
    wait_for_checkpoint(lab, run.id)
    killed = learner_of(lab).pids[1]
    os.kill(killed, signal.SIGSTOP)
    wait_for_update(lab, run.id)
    os.kill(killed, signal.SIGKILL)
    assert run.join(120)
    assert run.state == "failed"
    assert "Rank 1 of the learner died" in run.record.reason
    assert "out of memory" in run.record.reason

    lab.close()
    bench.open_again(run.id)
    lab = bench.lab
    again = bench.trainer.resume(run.id)
    assert again.join(600)
    assert again.state == "finished"
    steps = lab.store.steps(run.id)
    assert [step.index for step in steps] == [0, 1]
    assert not any(step.skipped for step in steps)
    consumed = [rollout_id for step in steps for rollout_id in step.rollout_ids]
    assert len(consumed) == len(set(consumed)) == 2 * 2 * 4
    assert killed not in learner_of(lab).pids


def test_a_head_that_is_gone_in_an_update_ends_the_run_by_name(bench: Bench) -> None:
    lab = bench.lab
    run = bench.trainer.fit(steps=2)
    wait_for_checkpoint(lab, run.id)
    learner = learner_of(lab)
    rank = psutil.Process(learner.pids[0])
    (head,) = [process for process in rank.parent().parent().children() if "gcs_server" in process.name()]
    rank.suspend()
    wait_for_update(lab, run.id)
    head.kill()
    assert run.join(120)
    assert run.state == "failed"
    assert "The head of the Ray cluster" in run.record.reason
    assert "trainer.resume" in run.record.reason
    wait_until(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE, "the rank to end", 60)
