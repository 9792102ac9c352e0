"""What a `Store` needs of whoever writes for it, and what all of them share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lightning_lab.records import Event
from lightning_lab.store.transaction import Put

Subscriber = Callable[[Sequence[Event]], None]
Watcher = Callable[[], None]
_Callback = TypeVar("_Callback", bound=Callable[..., Any])

logger = logging.getLogger(__name__)


class Writing(Protocol):
    """Whoever takes the puts of a `Store`: a thread of this process, or a process that has one."""

    def submit(self, put: Put | None) -> Future[int]:
        """Queue one put, or a barrier. Never blocks on the disk; every refusal is in the future."""
        ...

    def subscribe(self, callback: Subscriber) -> Callable[[], None]: ...

    def watch(self, callback: Watcher) -> Callable[[], None]: ...

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
        self._subscribers: tuple[Subscriber, ...] = ()
        self._watchers: tuple[Watcher, ...] = ()
        self._lock = threading.Lock()

    def add(self, callback: Subscriber) -> Callable[[], None]:
        """Of the events of each. Returns what ends the subscription."""
        with self._lock:
            self._subscribers = (*self._subscribers, callback)

        def end() -> None:
            with self._lock:
                self._subscribers = _without(self._subscribers, callback)

        return end

    def add_watcher(self, callback: Watcher) -> Callable[[], None]:
        """That there are events. Returns what ends that."""
        with self._lock:
            self._watchers = (*self._watchers, callback)

        def end() -> None:
            with self._lock:
                self._watchers = _without(self._watchers, callback)

        return end

    def tell(self, events: Sequence[Event], *, news: bool) -> None:
        calls: list[Watcher] = [partial(callback, events) for callback in self._subscribers if events]
        calls += self._watchers if news else ()
        for call in calls:
            try:
                call()
            except Exception:
                logger.exception("A subscriber of %s failed; it will be called again with the next events", self._path)


def _without(callbacks: tuple[_Callback, ...], callback: _Callback) -> tuple[_Callback, ...]:
    kept = list(callbacks)
    if callback in kept:
        kept.remove(callback)
    return tuple(kept)
