"""Calls of one rollout → its samples and breaks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lightning_lab.records import Break, Call, Sample
from lightning_lab.samples.delivery import delivered_calls
from lightning_lab.samples.diagnosis import Decode, diagnose
from lightning_lab.samples.parents import grow
from lightning_lab.samples.rows import rows


@dataclass(frozen=True, slots=True)
class SampleSet:
    """What one rollout gives to training."""

    samples: list[Sample]
    """In the order in which their last calls completed."""
    breaks: list[Break]
    """In the order in which the breaking calls arrived."""


CALL_KINDS = ("main", "sub_agent", "side", "compaction", "retry", "undelivered")
"""Classes of calls that a filter may name."""


def build_samples(
    calls: Sequence[Call],
    decode: Decode | None = None,
    *,
    merge: str = "forest",
    kinds: Collection[str] | None = None,
) -> SampleSet:
    """Samples of one attempt of one rollout; calls may come in any order, undelivered ones are left out.

    Args:
        decode: ids → text; fills the windows of breaks and tells ``retokenized`` from ``template``.
        merge: ``forest``; ``linear`` or ``none`` for comparison. Breaks are those of the forest under every rule.
        kinds: only calls of these classes (`CALL_KINDS`) train; tokens of the others are masked as ``filtered``.

    Raises ValueError when the calls are not of one attempt of one rollout, or for an unknown rule or class.
    """
    if kinds is not None and (unknown := sorted(set(kinds) - set(CALL_KINDS))):
        raise ValueError(f"There are no calls of kind {', '.join(unknown)}. Use some of: {', '.join(CALL_KINDS)}.")
    delivered = delivered_calls(calls)
    forest = grow(delivered)
    merged = forest if merge == "forest" else grow(delivered, merge)
    return SampleSet(rows(merged, kinds), diagnose(forest, decode))
