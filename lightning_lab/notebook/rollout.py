"""One rollout in the notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lightning_lab.notebook.cuts import cuts_of
from lightning_lab.notebook.detail import rollout_detail
from lightning_lab.notebook.frames import Snapshot
from lightning_lab.notebook.html import verdict_line
from lightning_lab.notebook.merging import samples_of
from lightning_lab.notebook.plain import json_value
from lightning_lab.notebook.redacted import redacted
from lightning_lab.notebook.saved_answers import saved_answers
from lightning_lab.notebook.strip_picture import strip_tag
from lightning_lab.notebook.token_text import decoded_by
from lightning_lab.notebook.views import MimeBundle, rollout_bundle
from lightning_lab.records import Break, Call, Rollout, Sample
from lightning_lab.samples import Decode
from lightning_lab.store import Redaction, Store


class HasStore(Protocol):
    @property
    def store(self) -> Store: ...

    @property
    def decode(self) -> Decode | None:
        """Ids → text, where somebody knows how."""
        ...

    @property
    def redaction(self) -> Redaction:
        """What is hidden wherever something is shown."""
        ...


class RolloutView:
    """What is stored of one rollout; shows its transcript in a cell, without secrets. Records hold what was said."""

    def __init__(self, source: HasStore, rollout_id: str, *, snapshot: Callable[[], Snapshot]) -> None:
        self.id = rollout_id
        self._source = source
        self._snapshot = snapshot

    @property
    def record(self) -> Rollout:
        """The rollout's record, as it is now."""
        return self._source.store.rollout(self.id)

    @property
    def state(self) -> str:
        return str(self.record.state)

    @property
    def reward(self) -> float | None:
        return self.record.reward

    @property
    def output(self) -> str:
        return self.record.output

    def calls(self) -> Sequence[Call]:
        """The model calls of the last attempt, in order of arrival."""
        return self._source.store.calls(self.id, attempt=self.record.attempt)

    def call(self, ordinal: int) -> Call:
        """One call by its place among the rollout's calls, counted from 0. Raises `IndexError`."""
        calls = self.calls()
        for call in calls:
            if call.ordinal == ordinal:
                return call
        raise IndexError(f"Rollout {self.id} has no call {ordinal}; it has {len(calls)}, counted from 0.")

    def samples(self) -> Sequence[Sample]:
        """The training rows made of it; before a step consumed it, those that would be made."""
        return samples_of(self._source.store, self.record, self._source.decode).samples

    def breaks(self) -> Sequence[Break]:
        """Where and why its calls could not be merged. ``ll.explain(b)`` says it in a sentence."""
        return samples_of(self._source.store, self.record, self._source.decode).breaks

    def bundle(self) -> MimeBundle:
        """The Rollout page as a saved view."""
        cuts = cuts_of(self._source.store, self.id, self._source.decode)
        shown = redacted(cuts, self._source.redaction, self._source.decode)
        answers = saved_answers(self._source.store, shown, decoded_by(lambda: self._source.decode))
        return rollout_bundle(self._snapshot(), rollout_detail(shown), answers, strip_tag(shown.samples))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> MimeBundle:
        return self.bundle()

    def __repr__(self) -> str:
        record = self._source.redaction.record(self.record)
        fields = {"reward": record.reward, "verdict": record.verdict}
        return f"rollout {self.id}: {record.state}, {verdict_line(json_value(fields))}"
