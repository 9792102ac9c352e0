"""One rollout with its calls, samples and breaks: what its page is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_lab.notebook.merging import samples_of
from lightning_lab.records import Break, Call, Rollout, Sample
from lightning_lab.samples import Decode
from lightning_lab.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    rollout: Rollout
    calls: Sequence[Call]
    samples: Sequence[Sample]
    breaks: Sequence[Break]
    trained: bool
    """Whether a step consumed these samples; otherwise they are what the calls would give now."""
    tampering: Sequence[Mapping[str, Any]] = ()
    """What was tried with the rollout's key beyond model calls, oldest first (`gateway.tamper`), with ``at``."""
    attempts: Sequence[Mapping[str, Any]] = ()
    """The attempts before this one, oldest first: ``attempt``, ``outcome``, ``error``, ``at``."""


def cuts_of(store: Store, rollout_id: str, decode: Decode | None = None) -> Cuts:
    """``decode`` fills the windows of breaks that are not stored. Raises `store.UnknownIdError`."""
    rollout = store.rollout(rollout_id)
    made = samples_of(store, rollout, decode)
    return Cuts(
        rollout=rollout,
        calls=store.calls(rollout_id, attempt=rollout.attempt),
        samples=made.samples,
        breaks=made.breaks,
        trained=rollout.step is not None,
        tampering=_told(store, rollout, "tamper"),
        attempts=_told(store, rollout, "attempt"),
    )


def _told(store: Store, rollout: Rollout, kind: str) -> list[Mapping[str, Any]]:
    """The log's lines about the rollout."""
    events = store.events(run_id=rollout.run_id, kind=kind)
    return [{"at": event.at, **event.data} for event in events if event.subject == rollout.id]
