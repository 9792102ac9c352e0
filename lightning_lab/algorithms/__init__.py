"""Rewards → advantages, weights and losses. Pure functions over arrays; `losses` and `correction` alone need torch."""

from lightning_lab.algorithms.advantages import ESTIMATORS, Estimator, EstimatorError, group_statistics
from lightning_lab.algorithms.estimation import (
    SINGLETONS,
    compute_advantages,
    register_estimator,
    sample_level_advantages,
)
from lightning_lab.algorithms.normalizers import CUT_DEPENDENT, NORMALIZERS, rollout_shares, token_weights

__all__ = [
    "CUT_DEPENDENT",
    "ESTIMATORS",
    "NORMALIZERS",
    "SINGLETONS",
    "Estimator",
    "EstimatorError",
    "compute_advantages",
    "group_statistics",
    "register_estimator",
    "rollout_shares",
    "sample_level_advantages",
    "token_weights",
]
