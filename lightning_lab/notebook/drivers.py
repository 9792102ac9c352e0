"""Which rollouts made a step what it is: shares of its divergence from the sampler, by rollout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_lab.records import Step
from lightning_lab.store import Store

_MAX_ROLLOUTS = 1_000


class Drivers:
    """Asked once for each step; what a step consumed does not change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, Sequence[tuple[str, float]]] = {}

    def of(self, step: Step) -> Sequence[tuple[str, float]]:
        """Rollouts with their share of the step's KL, largest first; none where the learner kept no ratios.

        A token's part is ``r − 1 − ln r`` of its probability ratio r (Schulman's k3 estimator).
        """
        if step.index not in self._known:
            self._known[step.index] = self._shares(step)
        return self._known[step.index]

    def _shares(self, step: Step) -> Sequence[tuple[str, float]]:
        parts = {id_: self._divergence(id_) for id_ in step.rollout_ids[:_MAX_ROLLOUTS]}
        whole = sum(parts.values())
        shares = [(id_, part / whole) for id_, part in parts.items() if whole > 0 and part > 0]
        return sorted(shares, key=lambda share: -share[1])

    def _divergence(self, rollout_id: str) -> float:
        ratios = [stats["ratio"] for stats in self._store.token_stats(rollout_id) if "ratio" in stats]
        ratio = np.concatenate(ratios).astype(np.float64) if ratios else np.zeros(0)
        told = ratio[np.isfinite(ratio) & (ratio > 0)]
        return float((told - 1 - np.log(told)).sum())
