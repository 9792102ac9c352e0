"""Rewards → advantages, weights and losses. Pure functions over arrays; `losses` alone needs torch."""

from lightning_lab.algorithms.advantages import ESTIMATORS, Estimator, group_statistics
from lightning_lab.algorithms.normalizers import CUT_DEPENDENT, NORMALIZERS, rollout_shares, token_weights

__all__ = [
    "CUT_DEPENDENT",
    "ESTIMATORS",
    "NORMALIZERS",
    "Estimator",
    "group_statistics",
    "rollout_shares",
    "token_weights",
]
