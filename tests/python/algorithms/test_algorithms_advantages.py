"""Contract 4 as properties, and reported faults of advantage code."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_lab.algorithms import (
    ESTIMATORS,
    EstimatorError,
    compute_advantages,
    group_statistics,
    register_estimator,
    sample_level_advantages,
)
from lightning_lab.algorithms.advantages import dr_grpo, grpo, maxrl, reinforce_pp, rloo
from lightning_lab.algorithms.estimation import GROUPLESS

BY_GROUP = sorted(set(ESTIMATORS) - {"reinforce_pp", "reinforce_pp_baseline", "maxrl"})

NAN = float("nan")
rewards_of_groups = st.lists(
    st.lists(st.one_of(st.floats(-100, 100), st.sampled_from([NAN, math.inf, -math.inf])), min_size=1, max_size=6),
    min_size=1,
    max_size=5,
)


def _arrays(groups: list[list[float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rewards = np.array([reward for group in groups for reward in group])
    labels = np.array([index for index, group in enumerate(groups) for _ in group])
    return rewards, labels, np.ones(len(rewards), bool)


def _advantages(name: str, *groups: list[float]) -> list[float]:
    return ESTIMATORS[name](*_arrays(list(groups))).tolist()


def _by_hand(name: str, group: list[float]) -> list[float]:
    """One group with plain Python, from the papers."""
    known = [reward for reward in group if math.isfinite(reward)]
    if len(known) < 2 or max(known) - min(known) <= 1e-6 * max(1.0, *(abs(reward) for reward in known)):
        return [0.0] * len(group)
    n, mean = len(known), math.fsum(known) / len(known)
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / (n - 1))
    formula = {
        "grpo": lambda r: (r - mean) / (std + 1e-6),
        "dr_grpo": lambda r: r - mean,
        "rloo": lambda r: r - (math.fsum(known) - r) / (n - 1),
        "reinforce_baseline": lambda r: r - mean,
    }[name]
    return [formula(reward) if math.isfinite(reward) else 0.0 for reward in group]


@pytest.mark.parametrize("name", BY_GROUP)
@given(groups=rewards_of_groups)
@settings(max_examples=150, deadline=None)
def test_every_estimator_equals_its_formula_group_by_group(name: str, groups: list[list[float]]) -> None:
    expected = [value for group in groups for value in _by_hand(name, group)]
    np.testing.assert_allclose(_advantages(name, *groups), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@given(groups=rewards_of_groups, seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_neither_labels_nor_order_matter(name: str, groups: list[list[float]], seed: int) -> None:
    rewards, labels, valid = _arrays(groups)
    rewards = np.abs(rewards) if name == "maxrl" else rewards
    order = np.random.default_rng(seed).permutation(len(rewards))
    plain = ESTIMATORS[name](rewards, labels, valid)
    moved = ESTIMATORS[name](rewards[order], labels[order] * -7 + 1000, valid)
    np.testing.assert_allclose(moved, plain[order], rtol=1e-9, atol=1e-9)


@given(value=st.floats(-1e6, 1e6), n=st.integers(1, 8), noise=st.lists(st.floats(-1, 1), min_size=8, max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_range_below_the_tolerance_is_exactly_zero(value: float, n: int, noise: list[float]) -> None:
    group = [value + 4e-7 * max(1.0, abs(value)) * noise[i] for i in range(n)]
    for name in ESTIMATORS:
        positive = [abs(reward) for reward in group]
        assert _advantages(name, positive if name == "maxrl" else group) == [0.0] * n


def test_rl_4161_float_residue_is_no_signal() -> None:
    group = [0.1 + 0.25, 0.25 + 0.1, 0.35, 0.05 * 7, 0.7 / 2, 1.05 / 3, sum([0.05] * 7), 0.35]
    assert len(set(group)) > 1
    assert all(_advantages(name, group) == [0.0] * 8 for name in ESTIMATORS)


def test_verl_7793_and_trl_5775_singletons_and_nan() -> None:
    for name in ESTIMATORS:
        assert _advantages(name, [5.0]) == [0.0]
        assert _advantages(name, [1.0, NAN]) == [0.0, 0.0]
        first, excluded, last = _advantages(name, [1.0, NAN, 0.0])
        assert excluded == 0.0 and first == -last > 0


def test_easyr1_585_equal_rewards_are_counted_as_no_signal() -> None:
    stats = group_statistics(*_arrays([[1.0] * 4, [1.0, 0.0]]))
    assert stats.flat.tolist() == [True] * 4 + [False] * 2


def test_open_instruct_1887_an_infrastructure_failure_is_no_part_of_the_baseline() -> None:
    rewards, group = np.array([1.0, 0.0, 0.5, 0.0]), np.zeros(4, int)
    valid = np.array([True, True, True, False])
    np.testing.assert_allclose(dr_grpo(rewards, group, valid), [0.5, -0.5, 0.0, 0.0])


def test_slime_362_groups_of_different_sizes() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    group = np.array([0, 1, 0, 1, 0, 1, 1, 1])
    np.testing.assert_allclose(dr_grpo(rewards, group, np.ones(8, bool))[group == 0], [1 / 3, -2 / 3, 1 / 3])


def test_known_values() -> None:
    rewards, group, valid = np.array([1.0, 0.0, 0.0, 1.0]), np.zeros(4, int), np.ones(4, bool)
    np.testing.assert_allclose(grpo(rewards, group, valid), np.array([1, -1, -1, 1]) * 0.5 / (np.sqrt(1 / 3) + 1e-6))
    np.testing.assert_allclose(rloo(rewards, group, valid), np.array([2, -2, -2, 2]) / 3)


def test_nothing_in_nothing_out_and_shapes_are_checked() -> None:
    empty = np.zeros(0)
    assert all(e(empty, empty.astype(int), empty.astype(bool)).shape == (0,) for e in ESTIMATORS.values())
    with pytest.raises(ValueError, match="equally long"):
        grpo(np.zeros(3), np.zeros(2, int), np.ones(3, bool))


def test_global_whitening_by_hand() -> None:
    groups = [[1.0, 0.0, NAN], [1.0], [4.0, 0.0]]
    known = np.array([1.0, 0.0, 1.0, 4.0, 0.0])
    expected = (known - known.mean()) / np.sqrt(known.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(_advantages("reinforce_pp", *groups), [*expected[:2], 0, *expected[2:]])
    centered = np.array([0.5, -0.5, 0.0, 2.0, -2.0])
    expected = centered / np.sqrt(centered.var(ddof=1) + 1e-8)
    expected[2] = 0.0
    np.testing.assert_allclose(_advantages("reinforce_pp_baseline", *groups), [*expected[:2], 0, *expected[2:]])


def test_whitening_counts_rollouts_whatever_their_length() -> None:
    rewards, labels, valid = _arrays([[1.0, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(reinforce_pp(rewards, labels, valid)[0], 0.75 / np.sqrt(0.25 + 1e-8))


def test_maxrl_favours_hard_questions() -> None:
    hard, easy = _advantages("maxrl", [1.0, 0, 0, 0], [1.0, 1, 1, 0])[::4]
    assert hard == pytest.approx(3.0, rel=1e-5) and easy == pytest.approx(1 / 3, rel=1e-5)
    assert _advantages("maxrl", [0.0, 0, 0], [1.0, 1]) == [0.0] * 5
    with pytest.raises(EstimatorError, match=r"maxrl got the reward -1.*success rate"):
        maxrl(*_arrays([[1.0, -1.0]]))


@pytest.mark.parametrize("name", sorted(set(ESTIMATORS) - GROUPLESS))
def test_verl_7793_a_group_of_one_follows_the_named_rule_in_every_estimator(name: str) -> None:
    given_rewards = _arrays([[1.0, 0.0], [0.25], [NAN, 0.5]])
    values = {
        rule: compute_advantages(name, *given_rewards, singleton=rule) for rule in ("zero", "reward", "batch_mean")
    }
    assert values["zero"][[2, 4]].tolist() == [0.0, 0.0]
    assert values["reward"][[2, 4]].tolist() == [0.25, 0.5]
    np.testing.assert_allclose(values["batch_mean"][[2, 4]], [0.25 - 0.4375, 0.5 - 0.4375])
    for rule in values:
        assert values[rule][3] == 0.0 and values[rule][0] == values["zero"][0]


def test_rewards_that_are_no_numbers_change_nothing_and_get_zero() -> None:
    for name in ESTIMATORS:
        plain = compute_advantages(name, *_arrays([[1.0, 0.0, 0.5]]))
        holed = compute_advantages(name, *_arrays([[1.0, NAN, 0.0, math.inf, 0.5, -math.inf]]))
        np.testing.assert_allclose(holed[[0, 2, 4]], plain)
        assert holed[[1, 3, 5]].tolist() == [0.0] * 3


def test_an_estimator_of_ones_own_is_a_plain_function() -> None:
    def signs(rewards: np.ndarray, group: np.ndarray, valid: np.ndarray) -> np.ndarray:
        return np.sign(group_statistics(rewards, group, valid).centered)

    try:
        register_estimator("signs", signs)
        assert compute_advantages("signs", *_arrays([[3.0, 1.0], [7.0]])).tolist() == [1.0, -1.0, 0.0]
        register_estimator("signs", lambda rewards, group, valid: rewards - 5.0, uses_groups=False)
        assert compute_advantages("signs", *_arrays([[3.0, 1.0], [7.0]])).tolist() == [-2.0, -4.0, 2.0]
        register_estimator("signs", lambda rewards, group, valid: rewards / 0)
        with np.errstate(all="ignore"), pytest.raises(EstimatorError, match=r"'signs' gave .* not finite"):
            compute_advantages("signs", *_arrays([[1.0, 2.0]]))
        register_estimator("signs", lambda rewards, group, valid: rewards[:1])
        with pytest.raises(EstimatorError, match="each of the 2 rollouts"):
            compute_advantages("signs", *_arrays([[1.0, 2.0]]))
    finally:
        ESTIMATORS.pop("signs")


def test_unknown_names_say_what_there_is() -> None:
    given_rewards = _arrays([[1.0, 0.0]])
    with pytest.raises(EstimatorError, match=r"Use one of: .*grpo"):
        compute_advantages("gae", *given_rewards)
    with pytest.raises(EstimatorError, match="zero, reward, batch_mean"):
        compute_advantages("grpo", *given_rewards, singleton="one")
    with pytest.raises(EstimatorError, match="built-in"):
        register_estimator("grpo", dr_grpo)
    with pytest.raises(EstimatorError, match="variable's"):
        register_estimator("a b", dr_grpo)


def test_sample_level_statistics_count_a_rollout_once_per_sample() -> None:
    """The example of the Agent Lightning v1.0 report, figure 4: three samples with reward 1, one with reward 0."""
    rewards, group, valid = np.array([1.0, 0.0]), np.zeros(2, np.int64), np.ones(2, bool)
    cut = sample_level_advantages("dr_grpo", rewards, group, valid, np.array([3, 1]))
    assert cut.tolist() == [1 / 4, -3 / 4]
    assert compute_advantages("dr_grpo", rewards, group, valid).tolist() == [1 / 2, -1 / 2]


@given(groups=rewards_of_groups, data=st.data())
@settings(max_examples=100, deadline=None)
def test_sample_level_advantages_cancel_over_samples_and_equal_the_rollouts_where_each_has_one(
    groups: list[list[float]], data: st.DataObject
) -> None:
    rewards, group, valid = _arrays(groups)
    ones = np.ones(len(rewards), np.int64)
    assert np.array_equal(
        sample_level_advantages("dr_grpo", rewards, group, valid, ones),
        compute_advantages("dr_grpo", rewards, group, valid),
    )
    samples = np.array(data.draw(st.lists(st.integers(0, 4), min_size=len(rewards), max_size=len(rewards))), np.int64)
    advantages = sample_level_advantages("dr_grpo", rewards, group, valid, samples)
    assert np.isfinite(advantages).all() and not advantages[samples == 0].any()
    assert np.bincount(group, advantages * samples) == pytest.approx(0.0, abs=1e-9)
