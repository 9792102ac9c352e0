"""vLLM samples, two ranks of verl learn: whole updates, from the agent's call to the weights on the server."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engines_verl_agent import asker, numerate

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.policy.torch.checkpoint import load_weights

MODEL = "quickstart"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    policy = ll.Policy.vllm(MODEL, learner=ll.Learner.verl(2, collocated=True), collocated=True)
    made = ll.Lab(policy=policy, runs=tmp_path / "runs")
    yield made
    made.close()


def test_three_updates_reach_the_server(lab: Lab, tmp_path: Path) -> None:
    tasks = ll.tasks.reasoning_gym("chain_sum", 40, seed=0)
    sampling = ll.Sampling(max_tokens=24)
    trainer = ll.Trainer(lab, asker, tasks, numerate, n=4, groups=2, learning_rate=1e-3, sampling=sampling)
    run = trainer.fit(steps=3)
    assert run.join(800)
    assert (run.state, run.record.reason) == ("finished", "")
    steps = lab.store.steps(run.id)
    assert [(step.version, step.skipped) for step in steps] == [(1, ""), (2, ""), (3, "")]
    for step in steps:
        assert math.isfinite(step.metrics["loss"]) and math.isfinite(step.metrics["reward"])
        assert step.metrics["grad_norm"] > 0
        assert step.metrics["logprob_diff_max"] < 1e-3  # the ranks read what the server sampled
        assert step.metrics["parity_logprob_max"] < 1e-3  # the server samples what the ranks learned
    policy = lab.open_parts().policy
    policy._learner.export(tmp_path / "learned")
    learned, served = load_weights(tmp_path / "learned"), load_weights(policy._weights.current)
    assert learned.keys() == served.keys()
    for name, weight in learned.items():
        assert torch.equal(weight, served[name]), name
