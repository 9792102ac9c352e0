"""The embedded engine with a learner beside it: what is published, and what comes back from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_lab.policy.base import LossRow, PolicyError
from lightning_lab.policy.torch.checkpoint import CheckpointError
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.torch.taught import TaughtTorchPolicy

MakeRow = Callable[..., LossRow]


@pytest.fixture
def policy(qwen_directory: Path) -> Iterator[TaughtTorchPolicy]:
    made = TaughtTorchPolicy(qwen_directory, learner=DetachedTorchLearner(qwen_directory, threads=1), seed=3)
    made.start()
    yield made
    made.close()


def weights(policy: TaughtTorchPolicy) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in policy._model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def learn(policy: TaughtTorchPolicy, row: LossRow) -> None:
    policy.update([[row]], loss="ppo_clip", options={}, learning_rate=1e-2)


def test_what_was_learned_samples_from_the_publish_on(policy: TaughtTorchPolicy, make_row: MakeRow) -> None:
    row, before = make_row(policy, 1), weights(policy)
    learn(policy, row)
    assert same(weights(policy), before)
    policy.publish(1)
    assert policy.version == 1
    assert not same(weights(policy), before)
    (expected,) = policy._teacher.logprobs([row.sample], temperature=1.0)
    result = policy._learner.update([[row]], loss="ppo_clip", options={}, learning_rate=0.0)
    mask = row.sample.mask
    np.testing.assert_allclose(result.tokens[0].logprobs[mask], expected[mask], atol=1e-4)


def test_a_checkpoint_brings_back_learner_and_sampling(
    policy: TaughtTorchPolicy, make_row: MakeRow, tmp_path: Path
) -> None:
    learn(policy, make_row(policy, 1))
    policy.publish(1)
    saved = weights(policy)
    policy.save(tmp_path / "checkpoint")
    learn(policy, make_row(policy, 2))
    policy.publish(2)
    assert not same(weights(policy), saved)
    policy.load(tmp_path / "checkpoint")
    assert same(weights(policy), saved)
    assert policy.version == 2  # versions never fall
    with pytest.raises(CheckpointError, match="no checkpoint"):
        policy.load(tmp_path)


def test_weights_that_cannot_be_read_leave_the_earlier_ones_sampling(
    policy: TaughtTorchPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = weights(policy)
    monkeypatch.setattr(policy._teacher, "export", lambda place: (place / "model.safetensors").write_bytes(b"half"))
    with pytest.raises(PolicyError, match="cannot be read"):
        policy.publish(1)
    assert policy.version == 0
    assert same(weights(policy), before)
