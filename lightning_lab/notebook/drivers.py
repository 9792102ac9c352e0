"""What made a step what it is: each token's part of a measure, added up by rollout, and the token with the largest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_lab.records import Floats, Step
from lightning_lab.store import Store

_MAX_ROLLOUTS = 1_000

Parts = npt.NDArray[np.float64]


def _ratio(stats: Mapping[str, Floats]) -> Parts:
    ratio = np.asarray(stats["ratio"], np.float64)
    return np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)


def _divergence(stats: Mapping[str, Floats]) -> Parts:
    """``r − 1 − ln r`` of a token's probability ratio r (Schulman's k3 estimator)."""
    ratio = _ratio(stats)
    return ratio - 1 - np.log(ratio)


def _distance(stats: Mapping[str, Floats]) -> Parts:
    return np.abs(np.log(_ratio(stats)))


def _clipped(stats: Mapping[str, Floats]) -> Parts:
    return np.where(np.asarray(stats["clipped"]) > 0, np.maximum(_distance(stats), 1e-12), 0.0)


@dataclass(frozen=True, slots=True)
class Measure:
    needs: frozenset[str]
    """Of what the learner computed."""
    parts: Callable[[Mapping[str, Floats]], Parts]
    """Per token, at least 0; the largest is the one to look at."""
    total: Callable[[Parts], Any]
    """What a rollout's parts come to."""


MEASURES: Mapping[str, Measure] = {
    "kl": Measure(frozenset({"ratio"}), _divergence, np.sum),
    "ratio": Measure(frozenset({"ratio"}), _distance, np.max),
    "clip": Measure(frozenset({"ratio", "clipped"}), _clipped, np.count_nonzero),
}
"""By the colouring of tokens that shows it."""


class Drivers:
    """Asked once for each step and measure; what a step consumed does not change."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[int, str], Sequence[tuple[str, float]]] = {}

    def of(self, step: Step, measure: str) -> Sequence[tuple[str, float]]:
        """Rollouts with their share of the step's measure, largest first; none where the learner kept no numbers."""
        key = (step.index, measure)
        if key not in self._known:
            self._known[key] = self._shares(step, MEASURES[measure])
        return self._known[key]

    def _shares(self, step: Step, measure: Measure) -> Sequence[tuple[str, float]]:
        parts = {id_: self._total(id_, measure) for id_ in step.rollout_ids[:_MAX_ROLLOUTS]}
        whole = sum(parts.values())
        shares = [(id_, part / whole) for id_, part in parts.items() if whole > 0 and part > 0]
        return sorted(shares, key=lambda share: -share[1])

    def _total(self, rollout_id: str, measure: Measure) -> float:
        told = [measure.parts(stats) for stats in self._store.token_stats(rollout_id) if measure.needs <= stats.keys()]
        parts = np.concatenate(told) if told else np.zeros(0)
        return float(measure.total(parts)) if len(parts) else 0.0


def peak(stats: Sequence[Mapping[str, Floats]], by: str) -> tuple[int, int] | None:
    """Sample and token with the largest part; None where nothing was computed, or nothing stands out.

    ``stats``: per sample, as the store keeps them. Raises `KeyError` for a measure that there is not.
    """
    measure, found, largest = MEASURES[by], None, 0.0
    for sample, known in enumerate(stats):
        if not measure.needs <= known.keys():
            continue
        parts = measure.parts(known)
        if len(parts) and parts.max() > largest:
            found, largest = (sample, int(parts.argmax())), float(parts.max())
    return found
