"""Requests that only read: the same for a lab and for an exported run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning_lab.notebook.comparing import Comparing, Manifest
from lightning_lab.notebook.cuts import Cuts, cuts_of
from lightning_lab.notebook.detail import rollout_detail
from lightning_lab.notebook.drivers import MEASURES, peak
from lightning_lab.notebook.redacted import redacted
from lightning_lab.notebook.requests import Handler, Reply, RequestError
from lightning_lab.notebook.sides import break_sides
from lightning_lab.notebook.strips import sample_columns
from lightning_lab.notebook.timeline import Pauses, timeline_reply
from lightning_lab.notebook.token_text import TokenText
from lightning_lab.notebook.weighing import weigh_group
from lightning_lab.store import COMMON, Redaction, Store
from lightning_lab.store.errors import UnknownIdError

_METHODS = ("rollout", "tokens", "peak", "sides", "weights", "timeline")


def reading_handlers(
    store: Callable[[], Store],
    text: TokenText,
    redaction: Redaction = COMMON,
    manifest: Manifest | None = None,
) -> dict[str, Handler]:
    """``store`` is asked each time: a closed lab reads from another one than an open lab.

    ``manifest``: by default the one inside the store, which exported runs have.
    """
    reading = _Reading(store, text, redaction)
    comparing = Comparing(store, redaction, manifest or (lambda _: store().manifest()))
    methods = [getattr(reading, name) for name in _METHODS] + [comparing.runs, comparing.settings, comparing.run]
    return {method.__name__: _found(method) for method in methods}


class _Reading:
    def __init__(self, store: Callable[[], Store], text: TokenText, redaction: Redaction) -> None:
        self._store = store
        self._text = text
        self._redaction = redaction
        self._pauses = Pauses()

    def rollout(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return rollout_detail(self._cuts(params))

    def tokens(self, params: Mapping[str, Any]) -> Reply:
        """One message of a sample's tokens; the reader asks on from where it ended."""
        cuts = self._cuts(params)
        index = _place(params, "sample", len(cuts.samples))
        stats = self._store().token_stats(cuts.rollout.id) if cuts.trained else []
        start = params.get("from", 0)
        return sample_columns(cuts.samples, stats, self._text, index=index, start=max(0, int(start)))

    def peak(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The token that a measure of `drivers` is mostly about; empty where that was not computed."""
        by = str(params.get("by"))
        if by not in MEASURES:
            raise RequestError(f"There is no measure {by!r}: use {', '.join(MEASURES)}.")
        store = self._store()
        rollout = store.rollout(str(params.get("id", "")))
        found = peak(store.token_stats(rollout.id), by)
        if found is None:
            return {}
        sample, token = found
        segments = store.samples(rollout.id)[sample].segments
        return {"sample": sample, "token": token, "call": next(s.call_id for s in segments if token < s.stop)}

    def sides(self, params: Mapping[str, Any]) -> dict[str, Any]:
        cuts = self._cuts(params)
        return break_sides(cuts, _place(params, "break", len(cuts.breaks)), self._text)

    def weights(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return weigh_group(self._store(), str(params.get("id", "")))

    def timeline(self, params: Mapping[str, Any]) -> Reply:
        ids = params.get("rollouts")
        if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
            raise RequestError("A timeline needs a list of rollouts.")
        return timeline_reply(self._store(), str(params.get("run", "")), ids, self._pauses)

    def _cuts(self, params: Mapping[str, Any]) -> Cuts:
        cuts = cuts_of(self._store(), str(params.get("id", "")), self._text.decode)
        return redacted(cuts, self._redaction, self._text.decode)


def _found(handler: Handler) -> Handler:
    def answer(params: Mapping[str, Any]) -> Any:
        try:
            return handler(params)
        except UnknownIdError:
            what = (
                f"There is no {'run' if 'run' in params else 'rollout'} {params.get('run', params.get('id'))!r} here."
            )
            raise RequestError(what, "It may belong to a lab that was closed.") from None

    return answer


def _place(params: Mapping[str, Any], name: str, count: int) -> int:
    place = params.get(name)
    if not isinstance(place, int) or not 0 <= place < count:
        raise RequestError(f"There is no {name} {place!r}: the rollout has {count}.")
    return place
