"""Contract 5, the pure part: weights do not know how a rollout was cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_lab.algorithms import CUT_DEPENDENT, NORMALIZERS, rollout_shares, token_weights

cuts = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), min_size=1, max_size=6)


def _flat(rollouts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    owner = np.array([index for index, samples in enumerate(rollouts) for _ in samples])
    return owner, np.array([tokens for samples in rollouts for tokens in samples])


@pytest.mark.parametrize("name", sorted(set(NORMALIZERS) - CUT_DEPENDENT))
@given(rollouts=cuts)
@settings(max_examples=150, deadline=None)
def test_cutting_a_rollout_leaves_every_token_its_weight(name: str, rollouts: list[list[int]]) -> None:
    owner, tokens = _flat(rollouts)
    cut = token_weights(name, owner, tokens)
    whole = token_weights(name, *_flat([[sum(samples)] for samples in rollouts]))
    expected = np.where(tokens > 0, whole[owner], 0.0)
    np.testing.assert_allclose(cut, expected, rtol=1e-12)


@given(rollouts=cuts)
@settings(max_examples=150, deadline=None)
def test_rollout_mean_gives_each_rollout_with_tokens_the_same_share(rollouts: list[list[int]]) -> None:
    owner, tokens = _flat(rollouts)
    weights = token_weights("rollout_mean", owner, tokens)
    shares = rollout_shares(owner, tokens, weights)
    trained = [sum(samples) > 0 for samples in rollouts]
    for index, has_tokens in enumerate(trained):
        expected = 1 / sum(trained) if has_tokens else 0.0
        assert shares[owner == index][0] == pytest.approx(expected)
        assert (weights * tokens)[owner == index].sum() == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(NORMALIZERS))
@given(rollouts=cuts)
@settings(max_examples=60, deadline=None)
def test_weights_are_finite_and_shares_sum_to_one(name: str, rollouts: list[list[int]]) -> None:
    owner, tokens = _flat(rollouts)
    weights = token_weights(name, owner, tokens)
    assert np.isfinite(weights).all() and ((weights > 0) == (tokens > 0)).all()
    shares = rollout_shares(owner, tokens, weights)
    once = shares[np.unique(owner, return_index=True)[1]]
    assert once.sum() == pytest.approx(1.0 if tokens.sum() else 0.0)


def test_cua_lite_13_the_normaliser_is_a_choice() -> None:
    owner, tokens = np.array([0, 1]), np.array([10, 100])
    assert token_weights("rollout_mean", owner, tokens).tolist() == [1 / 20, 1 / 200]
    assert token_weights("token_mean", owner, tokens).tolist() == [1 / 110, 1 / 110]
    assert token_weights("constant", owner, tokens, constant=50).tolist() == [1 / 100, 1 / 100]
    np.testing.assert_allclose(rollout_shares(owner, tokens, np.array([1.0, 1.0])), [1 / 11, 10 / 11])


def test_sample_mean_is_cut_dependent() -> None:
    owner, tokens = np.array([0, 0, 1]), np.array([2, 6, 4])
    assert token_weights("sample_mean", owner, tokens).tolist() == pytest.approx([1 / 6, 1 / 18, 1 / 12])
    assert "sample_mean" in CUT_DEPENDENT


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="no normalizer 'mean'"):
        token_weights("mean", np.zeros(1, int), np.ones(1, int))
    with pytest.raises(ValueError, match="one rollout and one count"):
        token_weights("token_mean", np.zeros(2, int), np.ones(1, int))
    with pytest.raises(ValueError, match="at least 0"):
        token_weights("token_mean", np.zeros(1, int), np.array([-1]))
    assert token_weights("token_mean", np.zeros(0, int), np.zeros(0, int)).tolist() == []
