"""Several optimiser updates on the rollouts of one step, reported as one."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_lab.policy.base import UpdateResult


def combined(results: Sequence[UpdateResult]) -> UpdateResult:
    """Counts are added, extremes stay extremes, other metrics are means; token numbers follow in order.

    A rollout is in one update only, so its weight is its share there, divided by the number of updates. ``skipped``
    stays 1 only if every update was skipped.
    """
    if len(results) == 1:
        return results[0]
    names = {name: None for result in results for name in result.metrics}
    return UpdateResult(
        metrics={name: _joined(name, [r.metrics[name] for r in results if name in r.metrics]) for name in names},
        tokens=[tokens for result in results for tokens in result.tokens],
        rollout_weights={i: w / len(results) for result in results for i, w in result.rollout_weights.items()},
    )


def _joined(name: str, values: Sequence[float]) -> float:
    if name == "tokens" or name.startswith("masked_"):
        return sum(values)
    if name.endswith("_max"):
        return max(values)
    if name.endswith("_min") or name == "skipped":
        return min(values)
    return sum(values) / len(values)
