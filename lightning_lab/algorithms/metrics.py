"""What a step reports, by the names the field uses. Numpy only; every number is finite, also for no tokens at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lightning_lab.algorithms.advantages import FloatArray

Numbers = npt.NDArray[np.float32] | FloatArray


def effective_sample_size(ratio: Numbers) -> float:
    """(Σ ρ)² / (n Σ ρ²), from 0 to 1: the share of the tokens that the weights ρ leave in effect; 0 without tokens.

    Source: Kong 1992, A note on importance sampling using standardized weights.
    """
    rho = np.asarray(ratio, np.float64)
    square = float((rho**2).sum())
    return float(rho.sum()) ** 2 / (len(rho) * square) if square > 0 else 0.0


def ratio_metrics(ratio: Numbers, clipped: Numbers) -> dict[str, float]:
    """``approx_kl``, ``clip_frac``, ``ess`` and the ratio's mean, spread and range over the trained tokens.

    approx_kl is k3 of Schulman 2020, "Approximating KL Divergence": KL(old‖new) from samples of old.
    """
    rho = np.asarray(ratio, np.float64)
    if not len(rho):
        names = ("approx_kl", "clip_frac", "ess", "ratio_mean", "ratio_std", "ratio_min", "ratio_max")
        return dict.fromkeys(names, 0.0)
    return {
        "approx_kl": float((rho - 1.0 - np.log(np.maximum(rho, 1e-30))).mean()),
        "clip_frac": float(np.asarray(clipped, np.float64).mean()),
        "ess": effective_sample_size(rho),
        "ratio_mean": float(rho.mean()),
        "ratio_std": float(rho.std()),
        "ratio_min": float(rho.min()),
        "ratio_max": float(rho.max()),
    }


def rollout_weights(owners: Sequence[str], weights: Numbers) -> dict[str, float]:
    """Share of each rollout (``owners`` [T]) in the step after correction: ``weights`` [T] are w_t · factor_t.

    The shares sum to 1, unless everything is masked: then they are 0.
    """
    names, index = np.unique(np.asarray(owners, dtype=str), return_inverse=True)
    totals = np.bincount(index.reshape(-1), np.abs(np.asarray(weights, np.float64)), len(names))
    total = totals.sum()
    return dict(zip(names.tolist(), (totals / total if total > 0 else totals).tolist(), strict=True))


def weight_metrics(shares: Mapping[str, float]) -> dict[str, float]:
    """``effective_rollouts`` = 1 / Σ share² (n where all weigh the same), and the smallest and largest share."""
    known = np.array(list(shares.values()), np.float64)
    square = float((known**2).sum())
    return {
        "effective_rollouts": 1.0 / square if square > 0 else 0.0,
        "rollout_weight_min": float(known.min(initial=np.inf)) if len(known) else 0.0,
        "rollout_weight_max": float(known.max(initial=0.0)),
    }
