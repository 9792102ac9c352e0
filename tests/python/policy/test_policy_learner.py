"""One optimiser step: the gradient, what it reports, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_lab.policy.base import LossRow, PolicyError
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.policy.torch.batch import clusters
from lightning_lab.policy.torch.forward import HuggingFaceForward
from lightning_lab.records import Sample

MakeRow = Callable[..., LossRow]


@pytest.fixture
def policy(qwen_directory: Path) -> Iterator[TorchPolicy]:
    policy = TorchPolicy(qwen_directory, seed=3, train_threads=1)
    policy.start()
    yield policy
    policy.close()


def weights(policy: TorchPolicy) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in policy._model.state_dict().items()}


def gradient_of(policy: TorchPolicy, micro_batches: list[list[LossRow]]) -> list[torch.Tensor]:
    """The gradient that reaches the optimiser, which is kept from using it."""
    optimizer = policy._learner.optimizer
    seen: list[torch.Tensor] = []

    def keep(*_: object) -> None:
        seen.extend(p.grad.clone() for p in policy._model.parameters() if p.grad is not None)

    handle = optimizer.register_step_pre_hook(keep)
    policy.update(micro_batches, loss="ppo_clip", options={"max_grad_norm": 1e9}, learning_rate=0.0)
    handle.remove()
    return seen


def test_learner_and_sampler_agree(policy: TorchPolicy, make_row: MakeRow) -> None:
    rows = [make_row(policy, index, temperature=0.8) for index in range(4)]
    result = policy.update([rows], loss="ppo_clip", options={"temperature": 0.8}, learning_rate=0.0)
    assert result.metrics["logprob_diff_max"] < 1e-4
    assert result.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert result.metrics["tokens"] == sum(row.sample.mask.sum() for row in rows)
    for row, stats in zip(rows, result.tokens, strict=True):
        assert np.isnan(stats.logprobs[~row.sample.mask]).all()
        np.testing.assert_allclose(stats.logprobs[row.sample.mask], row.sample.logprobs[row.sample.mask], atol=1e-4)
        assert (stats.entropy[row.sample.mask] > 0).all()


def test_verl_2776_the_same_rows_in_1_2_and_4_micro_batches(policy: TorchPolicy, make_row: MakeRow) -> None:
    rows = [make_row(policy, index, advantage=(-1.0) ** index) for index in range(4)]
    whole = gradient_of(policy, [rows])
    for split in ([rows[:2], rows[2:]], [[row] for row in rows], [rows[3:], [], rows[:3]]):
        for left, right in zip(whole, gradient_of(policy, split), strict=True):
            torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("own_forward", [False, True])
def test_sharing_a_prefix_leaves_the_gradient_equal(
    policy: TorchPolicy, make_row: MakeRow, monkeypatch: pytest.MonkeyPatch, own_forward: bool
) -> None:
    if own_forward:
        monkeypatch.setattr(policy._learner, "_forward", HuggingFaceForward(policy._model))
    monkeypatch.setattr(policy._learner, "_part_tokens", 40)  # two rows do not fit one part
    rows = [make_row(policy, index, advantage=(-1.0) ** index + 0.2, shared=80) for index in range(3)]
    assert [cluster.shared for cluster in clusters(rows)] == [80]
    expected = plain_gradient(policy, rows)
    for micro_batches in ([rows], [[row] for row in rows], [[rows[0], make_row(policy, 7, advantage=0.0)], rows[1:]]):
        for left, right in zip(expected, gradient_of(policy, micro_batches), strict=True):
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-3)


def test_twins_share_no_trained_token(policy: TorchPolicy, make_row: MakeRow) -> None:
    row = make_row(policy, 0, shared=80)
    twin = replace(row, advantage=-1.0)
    assert [cluster.shared for cluster in clusters([row, twin])] == [np.flatnonzero(row.sample.mask)[0] - 1]
    result = policy.update([[row, twin]], loss="policy_gradient", options={}, learning_rate=0.0)
    assert result.metrics["tokens"] == 2 * row.sample.mask.sum()
    assert result.metrics["loss"] == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(result.tokens[0].loss, -result.tokens[1].loss)


def plain_gradient(policy: TorchPolicy, rows: list[LossRow]) -> list[torch.Tensor]:
    """On-policy policy gradient, one full forward pass per row."""
    policy._model.zero_grad()
    for row in rows:
        ids = torch.from_numpy(row.sample.ids.astype(np.int64))
        at = torch.from_numpy(np.flatnonzero(row.sample.mask))
        logprobs = torch.log_softmax(policy._model(ids[None]).logits[0], -1)[at - 1, ids[at]]
        torch.autograd.backward(-(row.advantage * row.token_weight * logprobs).sum())
    return [p.grad.clone() for p in policy._model.parameters() if p.grad is not None]


def test_reported_loss_is_the_sum_of_token_losses(policy: TorchPolicy, make_row: MakeRow) -> None:
    rows = [make_row(policy, index, advantage=0.5) for index in range(3)]
    result = policy.update([rows[:1], rows[1:]], loss="policy_gradient", options={}, learning_rate=0.0)
    assert result.metrics["loss"] == pytest.approx(sum(float(np.nansum(s.loss)) for s in result.tokens), rel=1e-4)


def test_rewarded_replies_become_likelier(policy: TorchPolicy, make_row: MakeRow) -> None:
    rows = [make_row(policy, 0, advantage=1.0), make_row(policy, 1, advantage=-1.0)]
    first = policy.update([rows], loss="ppo_clip", options={}, learning_rate=1e-3)
    after = policy.update([rows], loss="ppo_clip", options={}, learning_rate=0.0)
    change = [
        float(np.nansum(b.logprobs) - np.nansum(a.logprobs)) for a, b in zip(first.tokens, after.tokens, strict=True)
    ]
    assert change[0] > 0 > change[1]
    assert after.metrics["approx_kl"] > 0
    assert first.metrics["grad_norm"] > 0


def test_everything_masked_is_a_loss_of_zero(policy: TorchPolicy, make_row: MakeRow) -> None:
    row = make_row(policy, 0)
    empty = Sample(
        rollout_id="r",
        ids=row.sample.ids,
        mask=np.zeros_like(row.sample.mask),
        logprobs=np.zeros_like(row.sample.logprobs),
        versions=row.sample.versions,
        segments=(),
    )
    before = weights(policy)
    result = policy.update(
        [[LossRow(sample=empty, advantage=1.0, token_weight=1.0)]], loss="ppo_clip", options={}, learning_rate=1.0
    )
    assert result.metrics["loss"] == 0
    assert result.metrics["grad_norm"] == 0
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert all(torch.equal(value, before[name]) for name, value in weights(policy).items())


def test_a_token_without_a_log_prob_does_not_train(policy: TorchPolicy, make_row: MakeRow) -> None:
    row = make_row(policy, 2)
    broken = row.sample.logprobs.copy()
    broken[-1] = np.nan
    sample = Sample(
        rollout_id="r",
        ids=row.sample.ids,
        mask=row.sample.mask,
        logprobs=broken,
        versions=row.sample.versions,
        segments=(),
    )
    result = policy.update(
        [[LossRow(sample=sample, advantage=1.0, token_weight=1.0)]], loss="ppo_clip", options={}, learning_rate=0.0
    )
    assert result.tokens[0].loss[-1] == 0
    assert np.isfinite(result.metrics["loss"])


def test_a_gradient_that_is_not_finite_changes_nothing(policy: TorchPolicy, make_row: MakeRow) -> None:
    row = make_row(policy, 1)
    before = weights(policy)
    result = policy.update(
        [[LossRow(sample=row.sample, advantage=float("inf"), token_weight=1.0)]],
        loss="policy_gradient",
        options={},
        learning_rate=1.0,
    )
    assert result.metrics["skipped"] == 1
    assert all(torch.equal(value, before[name]) for name, value in weights(policy).items())
    sane = policy.update([[row]], loss="policy_gradient", options={}, learning_rate=1e-3)
    assert sane.metrics["skipped"] == 0


def test_entropy_bonus_raises_entropy(policy: TorchPolicy, make_row: MakeRow) -> None:
    rows = [make_row(policy, index, advantage=0.0) for index in range(3)]
    options = {"entropy_coef": 1.0}
    first = policy.update([rows], loss="ppo_clip", options=options, learning_rate=1e-3)
    after = policy.update([rows], loss="ppo_clip", options=options, learning_rate=0.0)
    assert after.metrics["entropy"] > first.metrics["entropy"]


def test_unknown_losses_and_options_are_refused(policy: TorchPolicy, make_row: MakeRow) -> None:
    row = make_row(policy, 0)
    with pytest.raises(PolicyError, match="ppo_clip"):
        policy.update([[row]], loss="nothing", options={}, learning_rate=0.1)
    with pytest.raises(TypeError):
        policy.update([[row]], loss="ppo_clip", options={"clip_lo": 0.1}, learning_rate=0.1)
