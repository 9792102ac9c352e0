"""Contract 5 on the learner itself: cut into samples, micro-batches or ranks, the gradient is the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_lab.algorithms import CUT_DEPENDENT, NORMALIZERS, token_weights
from lightning_lab.algorithms.losses import LOSSES
from lightning_lab.planning import plan
from lightning_lab.policy.base import LossRow
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.records import Sample, Segment


@pytest.fixture(scope="module")
def policy(qwen_directory: Path) -> Iterator[TorchPolicy]:
    policy = TorchPolicy(qwen_directory, dtype="float64", train_threads=1)
    policy.start()
    yield policy
    policy.close()


def merged(rollout: int, calls: int, rng: np.random.Generator) -> Sample:
    """Calls of 2 to 6 tokens behind each other, with context between them."""
    ids, mask, segments = list(rng.integers(0, 256, 3)), [False] * 3, []
    for number in range(calls):
        reply, context = rng.integers(0, 256, rng.integers(2, 7)), rng.integers(0, 256, 2)
        segments.append(Segment(call_id=f"c{number}", start=len(ids), stop=len(ids) + len(reply)))
        ids += [*reply, *context]
        mask += [True] * len(reply) + [False] * len(context)
    logprobs = np.where(mask, -5.5 + rng.normal(0, 0.2, len(ids)), 0.0).astype(np.float32)
    return Sample(
        rollout_id=f"r{rollout}", ids=np.array(ids, np.int32), mask=np.array(mask), logprobs=logprobs,
        versions=np.zeros(len(ids), np.int32), segments=tuple(segments),
    )  # fmt: skip


def cut(sample: Sample) -> list[Sample]:
    """One sample per call, as the rule ``none`` makes them."""
    found = []
    for segment in sample.segments:
        stop = segment.stop
        here = np.arange(stop) >= segment.start
        found.append(
            replace(sample, ids=sample.ids[:stop], mask=sample.mask[:stop] & here, logprobs=sample.logprobs[:stop],
                versions=sample.versions[:stop], segments=(segment,))
        )  # fmt: skip
    return found


def gradient(
    policy: TorchPolicy, samples: list[Sample], loss: str, normalizer: str, *, budget: int = 10_000, ranks: int = 1
) -> torch.Tensor:
    """What reaches the optimiser, the ranks' micro-batches one after the other."""
    owners = np.array([int(sample.rollout_id[1:]) for sample in samples])
    weights = token_weights(normalizer, owners, np.array([int(sample.mask.sum()) for sample in samples]))
    rows = [
        LossRow(sample=sample, advantage=(-1.0) ** owner * (owner + 1), token_weight=float(weight))
        for sample, owner, weight in zip(samples, owners, weights, strict=True)
    ]
    made = plan([len(row.sample.ids) for row in rows], budget, ranks)
    micro_batches = [[rows[i] for i in indices] for rank in range(ranks) for indices in made.of_rank(rank)]
    seen: list[torch.Tensor] = []
    handle = policy._learner.optimizer.register_step_pre_hook(
        lambda *_: seen.extend(p.grad.flatten().clone() for p in policy._model.parameters() if p.grad is not None)
    )
    options = {"max_grad_norm": 1e9, "corrections": {"geometric_mask": {"low": 0.2, "high": 5.0}}}
    policy.update(micro_batches, loss=loss, options=options, learning_rate=0.0)
    handle.remove()
    return torch.cat(seen)


@pytest.mark.parametrize("loss", sorted(LOSSES))
@given(seed=st.integers(0, 1000), calls=st.lists(st.integers(1, 3), min_size=2, max_size=3))
@settings(max_examples=2, deadline=None)
def test_the_gradient_does_not_know_how_the_step_was_cut(
    policy: TorchPolicy, loss: str, seed: int, calls: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    whole = [merged(rollout, count, rng) for rollout, count in enumerate(calls)]
    pieces = [piece for sample in whole for piece in cut(sample)]
    longest = max(len(sample.ids) for sample in whole)
    for normalizer in sorted(NORMALIZERS):
        expected = gradient(policy, whole, loss, normalizer)
        assert expected.dtype == torch.float64 and torch.isfinite(expected).all()
        same = [gradient(policy, whole, loss, normalizer, budget=longest, ranks=2)]
        if normalizer not in CUT_DEPENDENT:
            same.append(gradient(policy, pieces, loss, normalizer, budget=longest, ranks=3))
        for found in same:
            assert float((found - expected).norm()) <= 1e-5 * float(expected.norm()) + 1e-12


def test_verl_3035_seven_samples_on_four_ranks_have_the_gradient_of_one(policy: TorchPolicy) -> None:
    rng = np.random.default_rng(1)
    samples = [merged(rollout, 1, rng) for rollout in range(7)]
    longest = max(len(sample.ids) for sample in samples)
    expected = gradient(policy, samples, "ppo_clip", "rollout_mean")
    found = gradient(policy, samples, "ppo_clip", "rollout_mean", budget=longest, ranks=4)
    assert float((found - expected).norm()) <= 1e-5 * float(expected.norm())
