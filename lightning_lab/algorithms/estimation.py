"""Rewards → advantages by the estimator's name, with one documented value for groups of one.

Worked example: an estimator of your own is a plain function of three arrays::

    def signs(rewards, group, valid):
        return np.sign(group_statistics(rewards, group, valid).centered)

    register_estimator("signs", signs)          # from now on: Trainer(..., estimator="signs")
"""

from __future__ import annotations

import numpy as np

from lightning_lab.algorithms.advantages import (
    ESTIMATORS,
    BoolArray,
    Estimator,
    EstimatorError,
    FloatArray,
    IntArray,
    group_statistics,
)

GROUPLESS = {"reinforce_pp"}
"""Estimators that do not compare within groups: for them a group of one is nothing special."""

SINGLETONS = ("zero", "reward", "batch_mean")
"""What a rollout gets whose group has one counting reward: 0; its reward (as verl does); its reward minus the mean of
the batch's counting rewards."""


def register_estimator(name: str, function: Estimator, *, uses_groups: bool = True) -> None:
    """Make ``function(rewards [n], group [n], valid [n]) -> advantages [n]`` available under ``name``.

    ``uses_groups=False`` says that it does not compare within groups, so that groups of one need no rule. A name can
    be registered again, except the built-in ones: they raise `EstimatorError`.
    """
    if not name.isidentifier() or not callable(function):
        raise EstimatorError(f"An estimator needs a name like a variable's and a function; got {name!r}, {function!r}.")
    if name in _BUILT_IN:
        raise EstimatorError(f"{name!r} is a built-in estimator. Choose another name.")
    ESTIMATORS[name] = function
    if uses_groups:
        GROUPLESS.discard(name)
    else:
        GROUPLESS.add(name)


def compute_advantages(
    name: str, rewards: FloatArray, group: IntArray, valid: BoolArray, *, singleton: str = "zero"
) -> FloatArray:
    """Advantages float64 [n] by the estimator ``name``: 0 where the reward does not count, finite everywhere.

    ``singleton`` is one of `SINGLETONS`. Raises `EstimatorError` for unknown names and for an estimator that gives
    another shape or a number that is not finite.
    """
    if name not in ESTIMATORS:
        raise EstimatorError(f"There is no estimator {name!r}. Use one of: {', '.join(sorted(ESTIMATORS))}.")
    if singleton not in SINGLETONS:
        raise EstimatorError(f"There is no singleton rule {singleton!r}. Use one of: {', '.join(SINGLETONS)}.")
    stats = group_statistics(rewards, group, valid)
    known = np.where(stats.counts, np.asarray(rewards, np.float64), 0.0)
    estimated = np.asarray(ESTIMATORS[name](np.asarray(rewards, np.float64), np.asarray(group), stats.counts))
    if estimated.shape != known.shape or not np.isfinite(estimated[stats.counts]).all():
        raise EstimatorError(
            f"The estimator {name!r} gave shape {estimated.shape} with "
            f"{int((~np.isfinite(estimated)).sum())} numbers that are not finite; "
            f"it must give one finite number for each of the {len(known)} rollouts."
        )
    advantages = np.where(stats.counts, estimated, 0.0).astype(np.float64)
    alone = stats.counts & (stats.size == 1)
    if name not in GROUPLESS and alone.any():
        mean = known.sum() / max(int(stats.counts.sum()), 1)
        advantages[alone] = {"zero": 0.0 * known, "reward": known, "batch_mean": known - mean}[singleton][alone]
    return advantages


def sample_level_advantages(
    name: str, rewards: FloatArray, group: IntArray, valid: BoolArray, samples: IntArray, *, singleton: str = "zero"
) -> FloatArray:
    """For comparison only: `compute_advantages` with every rollout entered once per sample, as some trainers do.

    ``samples`` is int [n]: rollouts with more samples pull their group's mean and standard deviation towards their
    reward; those without samples get 0. With samples ``[3, 1]`` and rewards ``[1, 0]`` the mean is 3/4, not 1/2.
    Source: Agent Lightning v1.0 (arXiv 2608.17528), §2.2 and figure 4, which argues against it.
    """
    owner = np.repeat(np.arange(len(rewards)), samples)
    entered = compute_advantages(name, rewards[owner], group[owner], valid[owner], singleton=singleton)
    advantages = np.zeros(len(rewards))
    advantages[owner] = entered
    return advantages


_BUILT_IN = frozenset(ESTIMATORS)
