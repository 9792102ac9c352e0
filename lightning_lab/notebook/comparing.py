"""Other runs of the same store, for the page that compares two: which there are, their settings, and all of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightning_lab.notebook.feed import RunFeed
from lightning_lab.notebook.frames import frame_reply
from lightning_lab.notebook.plain import json_value
from lightning_lab.notebook.requests import Reply, RequestError
from lightning_lab.notebook.snapshot import run_fields
from lightning_lab.store import Redaction, Store

Manifest = Callable[[str], Mapping[str, Any]]
"""Run id → what its folder or file says of it."""

_MAX_RUNS = 200
_MAX_VALUE = 400
_TELLING = ("lightning_lab", "hashes", "seeds", "hardware")
"""Parts of a manifest by which runs differ, beside their settings, packages and commit."""


class Comparing:
    """Answers the requests ``runs``, ``settings`` and ``run``."""

    def __init__(self, store: Callable[[], Store], redaction: Redaction, manifest: Manifest) -> None:
        self._store = store
        self._redaction = redaction
        self._manifest = manifest
        self._feed: RunFeed | None = None

    def runs(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """The runs of the store, newest first."""
        store = self._store()
        newest = sorted(store.runs(), key=lambda run: run.created_at, reverse=True)[:_MAX_RUNS]
        shown = (run_fields(self._redaction.record(run)) for run in newest)
        return {"runs": [{**fields, "rollouts": store.counts(fields["id"])["total"]} for fields in shown]}

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """What a run was started with, as texts by dotted name."""
        run_id = str(params.get("run", ""))
        value = self._redaction.value({**self._store().run(run_id).settings, **_told(self._manifest(run_id))})
        return {"settings": {name: text[:_MAX_VALUE] for name, text in _flat(json_value(value))}}

    def run(self, params: Mapping[str, Any]) -> Reply:
        """A part of a run: what a frame holds, from the places ``rows`` and ``steps`` on."""
        run_id, rows, steps = str(params.get("run", "")), params.get("rows", 0), params.get("steps", 0)
        if not isinstance(rows, int) or not isinstance(steps, int) or rows < 0 or steps < 0:
            raise RequestError("A run is asked for from a place on.")
        feed = self._feed
        if feed is None or feed.run_id != run_id or rows == steps == 0:
            feed = self._feed = RunFeed(self._store(), run_id, self._redaction)
            feed.refresh()
        return frame_reply(
            feed.table, feed.snapshot(lab=f"run:{run_id}", lab_state="closed"), rows_from=rows, steps_from=steps
        )


def _told(manifest: Mapping[str, Any]) -> dict[str, Any]:
    packages = dict(str(one).partition("==")[::2] for one in manifest.get("packages") or ())
    commit = (manifest.get("git") or {}).get("commit")
    told = {name: manifest[name] for name in _TELLING if name in manifest}
    return {**told, **({"packages": packages} if packages else {}), **({"git": commit} if commit else {})}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested objects; lists are texts."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else key)
    else:
        yield name, value if isinstance(value, str) else str(value)
