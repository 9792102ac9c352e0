"""What an update says it did, from the numbers of its trained tokens. Numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lightning_lab.algorithms.metrics import ratio_metrics, rollout_weights, weight_metrics
from lightning_lab.policy.base import LossRow, TokenStats, UpdateResult
from lightning_lab.policy.torch.batch import split, trained_positions
from lightning_lab.records import Floats

_STATS = ("entropy", "logprobs", "ratio", "clipped", "loss")
COLUMNS = (*_STATS, "sampler_gap", "effective_weight", "kl")
"""Numbers of each trained token, float32 [T]."""


def update_result(
    columns: Mapping[str, Floats],
    done: Sequence[LossRow],
    given: Sequence[LossRow],
    masked: Mapping[str, int],
    *,
    token_stats: bool,
    **metrics: float,
) -> UpdateResult:
    """``columns`` run over the trained tokens of ``done``, which holds the rows of ``given`` that train, in any order.

    ``masked``: tokens by the correction that masked them. ``metrics`` are added as they are.
    """
    shares = _rollout_weights(columns, done)
    found = {**_metrics(columns, masked), **weight_metrics(shares), **metrics}
    if not token_stats:
        return UpdateResult(metrics=found, rollout_weights=shares)
    known = _token_stats(columns, done)
    return UpdateResult(
        metrics=found, tokens=[known.get(id(row)) or _nothing(row) for row in given], rollout_weights=shares
    )


def _rollout_weights(columns: Mapping[str, Floats], rows: Sequence[LossRow]) -> dict[str, float]:
    owners = [row.sample.rollout_id for row in rows for _ in range(int(trained_positions(row).sum()))]
    return rollout_weights(owners, columns["effective_weight"])


def _metrics(columns: Mapping[str, Floats], masked: Mapping[str, int]) -> dict[str, float]:
    """Token means over everything that trains, by the names of the field."""
    gap = np.abs(columns["sampler_gap"])
    count = len(columns["ratio"])
    return {
        "entropy": float(columns["entropy"].mean()) if count else 0.0,
        **ratio_metrics(columns["ratio"], columns["clipped"]),
        "tokens": float(count),
        "logprob_diff_max": float(np.nanmax(gap)) if np.isfinite(gap).any() else 0.0,
        "reference_kl": float(columns["kl"].mean()) if count else 0.0,
        **{f"masked_{name}": float(tokens) for name, tokens in masked.items()},
    }


def _token_stats(columns: Mapping[str, Floats], rows: Sequence[LossRow]) -> dict[int, TokenStats]:
    """By the identity of the row: rows are computed in another order than they were given."""
    aligned = [split(columns[name], rows) for name in _STATS]
    stats = (TokenStats(**dict(zip(_STATS, values, strict=True))) for values in zip(*aligned, strict=True))
    return {id(row): one for row, one in zip(rows, stats, strict=True)}


def _nothing(row: LossRow) -> TokenStats:
    """For a row in which no token trains."""
    return TokenStats(**{name: np.full(len(row.sample.ids), np.nan, dtype=np.float32) for name in _STATS})
