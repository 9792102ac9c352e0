"""What the cluster has of this lab: listed, then watched, then listed again, for as long as it is needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lightning_lab.controller.kubernetes.api import NO_ANSWER, Api, ApiFault, Backoff, unanswered
from lightning_lab.controller.kubernetes.manifests import JOB_LABEL, Manifest
from lightning_lab.controller.kubernetes.status import Object

_LOG = logging.getLogger(__name__)
_GONE = 410
_SHORT_S = 1.0
"""A watch that ends sooner was cut off: the next one waits a little."""


@dataclass(slots=True, eq=False)
class Entry:
    """One attempt as the cluster shows it. ``changed`` is set whenever something of it is new."""

    name: str
    job: Object | None = None
    pod: Object | None = None
    pod_gone: bool = False
    """Whether the pod was removed; ``pod`` is then the last that was seen of it."""
    seen: bool = False
    """Whether the cluster has shown the Job at some time."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def show(self, kind: str, thing: Object | None) -> None:
        if kind == "jobs":
            self.job, self.seen = thing, self.seen or thing is not None
        else:
            self.pod, self.pod_gone = thing or self.pod, thing is None
        self.changed.set()


class View:
    """Entries by the names of their Jobs. ``on_stranger`` is told of Jobs of this lab that nobody here waits for."""

    def __init__(self, api: Api, relist_s: float, on_stranger: Callable[[str], None]) -> None:
        self._api, self._relist_s, self._on_stranger = api, relist_s, on_stranger
        self._entries: dict[str, Entry] = {}

    def add(self, name: str) -> Entry:
        """From now on what the cluster says of this Job is kept; before it is made, so that nothing is missed."""
        entry = self._entries[name] = Entry(name)
        return entry

    def forget(self, name: str) -> None:
        self._entries.pop(name, None)

    async def refresh(self, entry: Entry) -> None:
        """Ask for this one now. Raises `ApiFault`, and what `NO_ANSWER` names."""
        selector = f"{JOB_LABEL}={entry.name}"
        for kind in ("pods", "jobs"):
            items = (await self._api.listed(kind, selector))["items"]
            entry.show(kind, items[0] if items else None)

    async def follow(self, kind: str) -> None:
        """Never ends. ``kind``: ``jobs`` or ``pods``."""
        loop, backoff = asyncio.get_running_loop(), Backoff()
        while True:
            began, wish = loop.time(), None
            try:
                await self._list_and_watch(kind)
            except ApiFault as fault:
                wish = fault.retry_after
                if fault.status != _GONE:
                    _LOG.warning("Watching %s: %s", kind, fault)
            except NO_ANSWER as error:
                _LOG.warning("Watching %s: %s", kind, unanswered(error))
            except Exception:  # an odd answer must not end the watching
                _LOG.exception("Watching %s failed.", kind)
            if loop.time() - began > _SHORT_S:
                backoff.reset()
            await backoff.sleep(wish)

    async def _list_and_watch(self, kind: str) -> None:
        before = [entry for entry in self._entries.values() if (entry.job if kind == "jobs" else entry.pod) is not None]
        listing = await self._api.listed(kind)
        self._take_list(kind, listing["items"], before)
        version = listing["metadata"]["resourceVersion"]
        async for event in self._api.watched(kind, version, self._relist_s):
            entry = self._entries.get(_name(kind, event["object"]))
            if entry is not None and event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                entry.show(kind, event["object"])
                if event["type"] == "DELETED":
                    entry.show(kind, None)

    def _take_list(self, kind: str, items: Sequence[Manifest], before: Sequence[Entry]) -> None:
        """``before``: what existed when the list was asked for, so that its absence means something."""
        found = {_name(kind, item): item for item in items}
        for name, item in found.items():
            if name in self._entries:
                self._entries[name].show(kind, item)
            elif kind == "jobs" and "deletionTimestamp" not in item["metadata"]:
                self._on_stranger(name)
        for entry in before:
            if entry.name not in found:
                entry.show(kind, None)


def _name(kind: str, thing: Object) -> str:
    metadata = thing["metadata"]
    return str(metadata["name"] if kind == "jobs" else metadata.get("labels", {}).get(JOB_LABEL, ""))
