"""How a rollout's calls were merged into samples, or would be: stored by the step that consumed it, else made now."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_lab.records import Break, Rollout
from lightning_lab.samples import Decode, SampleSet, build_samples
from lightning_lab.store import Store


def samples_of(store: Store, rollout: Rollout, decode: Decode | None) -> SampleSet:
    """Samples and breaks of one rollout. ``decode`` fills the windows of breaks that are not stored."""
    if rollout.step is not None:
        return SampleSet(list(store.samples(rollout.id)), list(store.breaks(rollout_id=rollout.id)))
    return build_samples(store.calls(rollout.id, attempt=rollout.attempt), decode)


def breaks_of(store: Store, rollouts: Sequence[Rollout], run_id: str | None, decode: Decode | None) -> list[Break]:
    """Of many rollouts: those of one run, or of the whole store."""
    open_ones = [rollout for rollout in rollouts if rollout.step is None]
    return store.breaks(run_id=run_id) + [b for rollout in open_ones for b in samples_of(store, rollout, decode).breaks]
