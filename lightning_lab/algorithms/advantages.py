"""Advantages per rollout. How many samples a rollout was cut into never enters.

Every estimator takes ``rewards`` (float [n]), ``group`` (int [n], any labels) and ``valid`` (bool [n]) and returns
float64 [n]. A reward counts when it is valid and finite; the others get 0 and change no statistic. A group whose
counting rewards span at most 1e-6·max(1, |r|max) is *flat*: its advantages are exactly 0. A group of one is flat;
`compute_advantages` can give it another value by name. Estimators that compare with the whole batch instead of the
group (`GROUPLESS`) treat the batch as one group.

Worked example: rewards ``[1, 0, 0, nan]`` of one group, all called valid: the mean is 1/3 over three rollouts, and
``dr_grpo`` gives ``[2/3, -1/3, -1/3, 0]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Estimator = Callable[[FloatArray, IntArray, BoolArray], FloatArray]

FLAT_TOLERANCE = 1e-6
EPSILON = 1e-6
WHITENING_EPSILON = 1e-8


class EstimatorError(ValueError):
    """An estimator cannot give advantages for these rewards; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Statistics of each rollout's group, over counting rewards only; all arrays have shape [n]."""

    centered: FloatArray
    """Reward minus its group's mean; 0 where the reward does not count or the group is flat."""
    std: FloatArray
    """Sample standard deviation (n − 1) of the group; 0 for flat groups."""
    size: IntArray
    """Counting rewards in the group."""
    counts: BoolArray
    """Whether this reward counts."""
    flat: BoolArray
    """Whether the group has no reward range: nothing can be learned from it."""


def group_statistics(rewards: FloatArray, group: IntArray, valid: BoolArray) -> GroupStatistics:
    """Shared ground of all estimators. Raises ValueError when the shapes differ."""
    rewards = np.asarray(rewards, np.float64)
    if not (rewards.ndim == 1 and rewards.shape == np.shape(group) == np.shape(valid)):
        raise ValueError(
            f"rewards, group and valid must be one-dimensional and equally long; got shapes {rewards.shape}, "
            f"{np.shape(group)} and {np.shape(valid)}."
        )
    counts = np.asarray(valid, np.bool_) & np.isfinite(rewards)
    labels = np.unique(np.asarray(group), return_inverse=True)[1].reshape(-1)
    groups = int(labels.max(initial=-1)) + 1
    where, known = labels[counts], rewards[counts]

    size = np.bincount(where, minlength=groups)
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, where, known)
    np.maximum.at(high, where, known)
    scale = np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    # "not above" rather than "at most": an empty group has range -inf and scale inf
    flat = ~(high - low > FLAT_TOLERANCE * scale)

    safe = np.maximum(size, 1)
    mean = np.bincount(where, known, groups) / safe
    centered = np.where(counts & ~flat[labels], np.where(counts, rewards, 0.0) - mean[labels], 0.0)
    variance = np.bincount(labels, centered**2, groups) / np.maximum(size - 1, 1)
    return GroupStatistics(centered, np.sqrt(variance)[labels], size[labels], counts, flat[labels])


def grpo(rewards: FloatArray, group: IntArray, valid: BoolArray) -> FloatArray:
    """A_i = (r_i − mean) / (std + 1e-6), std with n − 1.

    Source: Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), §4.1.2, outcome supervision.
    """
    stats = group_statistics(rewards, group, valid)
    return stats.centered / (stats.std + EPSILON)


def dr_grpo(rewards: FloatArray, group: IntArray, valid: BoolArray) -> FloatArray:
    """A_i = r_i − mean: without the division by the standard deviation, which favours easy and hard questions.

    Source: Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv 2503.20783), §3; the paper pairs it with the
    normaliser ``constant``.
    """
    return group_statistics(rewards, group, valid).centered


def rloo(rewards: FloatArray, group: IntArray, valid: BoolArray) -> FloatArray:
    """A_i = r_i − mean of the group's other rewards = (r_i − mean) · n / (n − 1).

    Source: Ahmadian et al. 2024, Back to Basics (arXiv 2402.14740), §3.
    """
    stats = group_statistics(rewards, group, valid)
    return stats.centered * stats.size / np.maximum(stats.size - 1, 1)


def reinforce_baseline(rewards: FloatArray, group: IntArray, valid: BoolArray) -> FloatArray:
    """A_i = r_i − mean of the group: REINFORCE with the group's mean as baseline.

    Source: Williams 1992, Simple statistical gradient-following algorithms, §2 (the baseline).
    """
    return group_statistics(rewards, group, valid).centered


def reinforce_pp(rewards: FloatArray, group: IntArray, valid: BoolArray) -> FloatArray:
    """A_i = (r_i − batch mean) / sqrt(batch variance + 1e-8), variance with n − 1: global whitening, no group baseline.

    Statistics are over rollouts, so that neither their lengths nor their samples move them. A flat batch gives 0.
    Source: Hu et al. 2025, REINFORCE++ (arXiv 2501.03262), §3; verl's ``masked_whiten`` for the 1e-8.
    """
    return _whitened(group_statistics(rewards, np.zeros(np.shape(group), np.int64), valid))


def reinforce_pp_baseline(rewards: FloatArray, group: IntArray, valid: BoolArray) -> FloatArray:
    """A_i = (r_i − group mean), whitened over the batch: the variant with the group's mean as baseline.

    Source: Hu et al. 2025, REINFORCE++ (arXiv 2501.03262), §3, REINFORCE++-baseline.
    """
    by_group = group_statistics(rewards, group, valid)
    whitened = _whitened(group_statistics(by_group.centered, np.zeros(np.shape(group), np.int64), by_group.counts))
    return np.where(by_group.flat, 0.0, whitened)


def maxrl(rewards: FloatArray, group: IntArray, valid: BoolArray) -> FloatArray:
    """A_i = (r_i − mean) / (mean + 1e-6): the gradient of log pass rate, which favours hard questions.

    Raises `EstimatorError` for a negative reward: the mean must be a success rate.
    Source: Tajwar et al. 2026, Maximum Likelihood Reinforcement Learning (arXiv 2602.02710).
    """
    stats = group_statistics(rewards, group, valid)
    known = np.where(stats.counts, rewards, 0.0)
    if (known < 0).any():
        raise EstimatorError(
            f"maxrl got the reward {known.min():g}; it divides by the group's mean, which must be a success rate. "
            "Give rewards from 0 to 1, or use another estimator, e.g. 'grpo'."
        )
    mean = np.where(stats.counts, known - stats.centered, 0.0)
    return np.where(stats.centered == 0.0, 0.0, stats.centered / (mean + EPSILON))


def _whitened(stats: GroupStatistics) -> FloatArray:
    return stats.centered / np.sqrt(stats.std**2 + WHITENING_EPSILON)


ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_baseline": reinforce_baseline,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "maxrl": maxrl,
}
"""Estimators by name; `register_estimator` adds your own."""
