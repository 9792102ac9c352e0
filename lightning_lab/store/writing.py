"""What a `Store` needs of whoever writes for it, and what all of them share."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from lightning_lab.records import Event
from lightning_lab.store.transaction import Put

Subscriber = Callable[[Sequence[Event]], None]
Watcher = Callable[[], None]

logger = logging.getLogger(__name__)


class Writing(Protocol):
    """Whoever takes the puts of a `Store`: a thread of this process, or a process that has one."""

    def submit(self, put: Put | None) -> Future[int]:
        """Queue one put, or a barrier. Never blocks on the disk; every refusal is in the future."""
        ...

    def subscribe(self, callback: Subscriber) -> Callable[[], None]: ...

    def watch(self, callback: Watcher) -> Callable[[], None]: ...

    def host(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Have small puts of this thread written on its event loop, where that saves work. Returns what ends that."""
        ...

    def in_writer_thread(self) -> bool:
        """Whether subscribers are called in this thread."""
        ...

    def stop(self) -> None:
        """Commit what was submitted; refuse what comes. Idempotent."""
        ...

    def release(self) -> None:
        """After `stop`: close the file. Idempotent."""
        ...


class Subscribers:
    """Who is told of every commit. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listeners: tuple[Subscriber, ...] = ()
        self._lock = threading.Lock()

    def add(self, callback: Subscriber) -> Callable[[], None]:
        """Of the events of each. Returns what ends the subscription."""
        return self._add(lambda events: callback(events) if events else None)

    def add_watcher(self, callback: Watcher) -> Callable[[], None]:
        """That there are events. Returns what ends that."""
        return self._add(lambda _: callback())

    def _add(self, listener: Subscriber) -> Callable[[], None]:
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def end() -> None:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

        return end

    def tell(self, events: Sequence[Event]) -> None:
        """There was a commit with events; none are given where nobody asked for them."""
        for listener in self._listeners:
            try:
                listener(events)
            except Exception:
                logger.exception("A subscriber of %s failed; it will be called again with the next events", self._path)
