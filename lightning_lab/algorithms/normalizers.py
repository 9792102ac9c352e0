"""What one trained token weighs in the loss of an optimiser step. The weights are fixed before micro-batching.

T_i is the number of mask-1 tokens of rollout i, t_s that of sample s, N the number of rollouts with T_i > 0. The caller
passes the samples of rollouts with a valid reward, those with advantage 0 included. Off-policy masks applied later
change the loss's terms, never these weights.

Worked example: rollout 0 has samples with 2 and 6 tokens, rollout 1 has one with 4. ``rollout_mean`` gives the tokens
1/(2·8), 1/(2·8) and 1/(2·4): each rollout weighs 1/2, however it was cut.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Normalizer = Callable[[IntArray, IntArray, float], FloatArray]


def token_weights(
    name: str, rollout_of_sample: IntArray, tokens_per_sample: IntArray, *, constant: float = 1024.0
) -> FloatArray:
    """Weight of every mask-1 token of each sample, float64 [s]; 0 for samples without such tokens.

    Args:
        name: a key of `NORMALIZERS`.
        rollout_of_sample: int [s], any labels.
        tokens_per_sample: int [s], mask-1 tokens t_s.
        constant: the length that ``constant`` divides by.

    Raises ValueError for an unknown name, unequal shapes, negative counts or a constant that is not positive.
    """
    if name not in NORMALIZERS:
        raise ValueError(f"There is no normalizer {name!r}. Use one of: {', '.join(sorted(NORMALIZERS))}.")
    tokens = np.asarray(tokens_per_sample, np.int64)
    labels = np.asarray(rollout_of_sample)
    if tokens.ndim != 1 or tokens.shape != labels.shape:
        raise ValueError(f"Each sample needs one rollout and one count; got shapes {labels.shape} and {tokens.shape}.")
    if (tokens < 0).any() or not constant > 0:
        raise ValueError("Token counts must be at least 0, and constant must be positive.")
    rollouts = np.unique(labels, return_inverse=True)[1].reshape(-1)
    return np.where(tokens > 0, NORMALIZERS[name](rollouts, tokens, constant), 0.0)


def rollout_shares(rollout_of_sample: IntArray, tokens_per_sample: IntArray, weights: FloatArray) -> FloatArray:
    """Share of each sample's rollout in the step's weight, float64 [s]; the shares of distinct rollouts sum to 1."""
    rollouts = np.unique(np.asarray(rollout_of_sample), return_inverse=True)[1].reshape(-1)
    totals = np.bincount(rollouts, weights * tokens_per_sample)
    total = totals.sum()
    return totals[rollouts] / total if total > 0 else np.zeros(len(rollouts))


def _rollout_mean(rollouts: IntArray, tokens: IntArray, constant: float) -> FloatArray:
    """1 / (N · T_i): every rollout weighs the same. Source: Agent Lightning v1.0 (arXiv 2608.17528)."""
    per_rollout = np.bincount(rollouts, tokens)
    return np.asarray(1.0 / (_at_least_one(np.count_nonzero(per_rollout)) * _at_least_one(per_rollout)[rollouts]))


def _token_mean(rollouts: IntArray, tokens: IntArray, constant: float) -> FloatArray:
    """1 / Σ T: every token weighs the same. Source: Yu et al. 2025, DAPO (arXiv 2503.14476), §3.3."""
    return np.full(len(tokens), 1.0 / max(int(tokens.sum()), 1))


def _sample_mean(rollouts: IntArray, tokens: IntArray, constant: float) -> FloatArray:
    """1 / (S · t_s), S samples with tokens: a rollout cut in two weighs twice. Source: GRPO (arXiv 2402.03300)."""
    return np.asarray(1.0 / (_at_least_one(np.count_nonzero(tokens)) * _at_least_one(tokens)))


def _constant(rollouts: IntArray, tokens: IntArray, constant: float) -> FloatArray:
    """1 / (N · constant): no length enters. Source: Liu et al. 2025, Dr. GRPO (arXiv 2503.20783), §3."""
    rollouts_with_tokens = float(_at_least_one(np.count_nonzero(np.bincount(rollouts, tokens))))
    return np.full(len(tokens), 1.0 / (rollouts_with_tokens * constant))


def _at_least_one(counts: npt.ArrayLike) -> FloatArray:
    return np.maximum(np.asarray(counts, np.float64), 1.0)


NORMALIZERS: dict[str, Normalizer] = {
    "rollout_mean": _rollout_mean,
    "token_mean": _token_mean,
    "sample_mean": _sample_mean,
    "constant": _constant,
}
"""Normalisers by their names in the literature."""

CUT_DEPENDENT = frozenset({"sample_mean"})
"""Normalisers whose gradient changes when a rollout is cut into more samples."""
