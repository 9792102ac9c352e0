"""Calls of one rollout → its samples and breaks."""

from __future__ import annotations

from collections.abc import Sequence
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


def build_samples(calls: Sequence[Call], decode: Decode | None = None) -> SampleSet:
    """Samples of one attempt of one rollout; calls may come in any order, undelivered ones are left out.

    ``decode`` (ids → text) fills the windows of breaks and tells ``retokenized`` from ``template``.
    Raises ValueError when the calls are not of one attempt of one rollout.
    """
    forest = grow(delivered_calls(calls))
    return SampleSet(rows(forest), diagnose(forest, decode))
