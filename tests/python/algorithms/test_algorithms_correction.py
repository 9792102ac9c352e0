"""Off-policy correction, KL to a reference, and the metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_lab.algorithms.correction import CORRECTIONS, correction_factors
from lightning_lab.algorithms.kl import KL_ESTIMATORS, reference_kl
from lightning_lab.algorithms.losses import LOSSES
from lightning_lab.algorithms.metrics import (
    effective_sample_size,
    ratio_metrics,
    rollout_weights,
    weight_metrics,
)

RATIOS = torch.log(torch.tensor([0.5, 2.0, 4.0, 0.9, 1.0, 50.0], dtype=torch.float64))
CALLS = torch.tensor([0, 0, 0, 1, 1, 1])
TRAINS = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("token_tis", {"cap": 2.0}, [0.5, 2.0, 2.0, 0.9, 1.0, 0.0]),
        ("icepop", {"low": 0.6, "high": 3.0}, [0.0, 2.0, 0.0, 0.9, 1.0, 0.0]),
        ("token_mis", {"cap": 2.0}, [0.5, 2.0, 0.0, 0.9, 1.0, 0.0]),
        ("sequence_tis", {"cap": 3.0}, [3.0, 3.0, 3.0, 0.9, 0.9, 0.0]),
        ("sequence_mis", {"cap": 3.0}, [0.0, 0.0, 0.0, 0.9, 0.9, 0.0]),
        ("sequence_mask", {"low": 0.5, "high": 2.0}, [0.0, 0.0, 0.0, 1.0, 1.0, 0.0]),
        ("geometric_mask", {"low": 0.96, "high": 2.0}, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_factors_by_hand(name: str, options: dict[str, float], expected: list[float]) -> None:
    factors, masked = correction_factors(RATIOS, torch.zeros(6).double(), TRAINS, CALLS, {name: options})
    np.testing.assert_allclose(factors, expected)
    assert masked[name].sum() == sum(e == 0 for e in expected[:5]), "a token that never trained is nobody's"


def test_corrections_multiply_and_a_token_is_counted_where_it_fell_first() -> None:
    both = {"icepop": {"low": 0.6, "high": 3.0}, "geometric_mask": {"low": 0.96, "high": 2.0}}
    factors, masked = correction_factors(RATIOS, torch.zeros(6).double(), TRAINS, CALLS, both)
    np.testing.assert_allclose(factors, [0.0, 2.0, 0.0, 0.0, 0.0, 0.0])
    assert {name: int(tokens.sum()) for name, tokens in masked.items()} == {"icepop": 2, "geometric_mask": 2}


@pytest.mark.parametrize("name", sorted(CORRECTIONS))
def test_extreme_and_missing_log_probs_stay_finite(name: str) -> None:
    logprobs = torch.tensor([-1.0, -5000.0, float("nan"), float("-inf")], dtype=torch.float64)
    sampler = torch.tensor([-5000.0, -1.0, -1.0, float("nan")], dtype=torch.float64)
    weights = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    factors, _ = correction_factors(logprobs, sampler, weights, None, {name: {}})
    assert torch.isfinite(factors).all() and factors[2:].tolist() == [0.0, 0.0]
    empty = torch.zeros(0, dtype=torch.float64)
    assert correction_factors(empty, empty, empty, None, {name: {}})[0].shape == (0,)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_mask_changes_the_numerator_only(name: str) -> None:
    logprobs, old = torch.tensor([-1.0, -2.0, -0.5]).double(), torch.tensor([-1.1, -1.9, -0.5]).double()
    advantages, weights = torch.ones(3).double(), torch.full((3,), 1 / 3).double()
    plain = LOSSES[name](logprobs, old, advantages, weights)[1]["loss"]
    factors = torch.tensor([1.0, 0.0, 1.0]).double()
    masked = LOSSES[name](logprobs, old, advantages, weights, None, factors)[1]["loss"]
    np.testing.assert_allclose(masked, plain * factors)


def test_unknown_corrections_and_options_are_refused() -> None:
    with pytest.raises(KeyError):
        correction_factors(RATIOS, RATIOS, TRAINS, CALLS, {"tis": {}})
    with pytest.raises(TypeError):
        correction_factors(RATIOS, RATIOS, TRAINS, CALLS, {"token_tis": {"max": 2.0}})


@pytest.mark.parametrize("estimator", sorted(KL_ESTIMATORS))
def test_kl_is_zero_at_the_reference_and_for_tokens_that_do_not_train(estimator: str) -> None:
    logprobs = torch.tensor([-1.0, -2.0, float("-inf")], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.0, -3.0, float("nan")], dtype=torch.float64)
    kl = reference_kl(logprobs, reference, torch.tensor([1.0, 1.0, 0.0]), estimator)
    expected = {"k1": 1.0, "k2": 0.5, "k3": np.exp(-1.0)}[estimator]
    np.testing.assert_allclose(kl.detach(), [0.0, expected, 0.0])
    kl.sum().backward()
    assert logprobs.grad is not None and torch.isfinite(logprobs.grad).all() and logprobs.grad[2] == 0


def test_k2_has_the_gradient_of_the_kl_on_policy() -> None:
    """Exactly, over all tokens of a small vocabulary."""
    logits = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    reference = torch.log_softmax(torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), 0)
    logprobs = torch.log_softmax(logits, 0)
    exact = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True)[0]
    probabilities = logprobs.exp().detach()
    estimated = (probabilities * reference_kl(logprobs, reference, torch.ones(5), "k2")).sum()
    np.testing.assert_allclose(torch.autograd.grad(estimated, logits, retain_graph=True)[0], exact, atol=1e-12)
    useless = (probabilities * reference_kl(logprobs, reference, torch.ones(5), "k1")).sum()
    np.testing.assert_allclose(torch.autograd.grad(useless, logits)[0], np.zeros(5), atol=1e-12)


@given(st.lists(st.floats(0.0, 1e6), max_size=20))
@settings(max_examples=100, deadline=None)
def test_metrics_are_finite(ratios: list[float]) -> None:
    found = ratio_metrics(np.array(ratios), np.zeros(len(ratios)))
    assert all(np.isfinite(value) for value in found.values())
    assert 0 <= found["ess"] <= 1 + 1e-9


def test_effective_sample_size_known_values() -> None:
    assert effective_sample_size(np.full(7, 0.3)) == pytest.approx(1.0)
    assert effective_sample_size(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert effective_sample_size(np.zeros(0)) == 0.0


def test_weights_of_rollouts_after_correction() -> None:
    shares = rollout_weights(["a", "a", "b"], np.array([0.25, 0.25, 1.5]))
    assert shares == pytest.approx({"a": 0.25, "b": 0.75})
    assert weight_metrics(shares)["effective_rollouts"] == pytest.approx(1 / (0.25**2 + 0.75**2))
    assert rollout_weights(["a", "b"], np.zeros(2)) == {"a": 0.0, "b": 0.0}
    assert weight_metrics({}) == {"effective_rollouts": 0.0, "rollout_weight_min": 0.0, "rollout_weight_max": 0.0}
