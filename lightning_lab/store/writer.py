"""Who writes: takes everything queued, one transaction, commit, then tells.

The writer's thread sleeps until something is put; nothing polls. Under load commits become larger, not more frequent
(group commit).

A busy event loop can *host* the writing of what it puts itself. The loop then runs the statements of a group, and the
thread what Python has no part in: the commit. Two threads that both run Python pass the interpreter to and fro many
times for every call, which costs more than the writing does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from operator import attrgetter
from pathlib import Path

from lightning_lab.records import Event
from lightning_lab.store.errors import DiskError, StoreClosedError, StoreError
from lightning_lab.store.hosting import CROWD, WINDOW_S, Host
from lightning_lab.store.lock import WriterLock
from lightning_lab.store.schema import Durability, open_writer
from lightning_lab.store.transaction import Put, Transaction
from lightning_lab.store.writing import Subscriber, Subscribers, Watcher

_LARGEST_BATCH = 4096
_LARGEST_HOSTED = 64
"""Puts that a loop writes in one go: some ten milliseconds of its time."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Item:
    """A put waiting for its commit. ``put`` is None for a barrier: it resolves when all before it is committed."""

    put: Put | None
    hosted: bool = False
    future: Future[int] = field(default_factory=Future)


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """A group whose statements were run, and what becomes of each item with the commit."""

    items: Sequence[_Item]
    outcomes: Sequence[int | StoreError]
    events: Sequence[Event]


class Writer:
    """Owns the writing connection. Thread-safe."""

    def __init__(self, path: Path, durability: Durability) -> None:
        """Raises `StoreBusyError` if somebody else writes this file, or another `StoreError` if it cannot be opened."""
        self._path = path
        self._lock = WriterLock(path)
        try:
            self._connection = open_writer(path, durability)
            self._transaction = Transaction(self._connection)
        except BaseException:
            self._lock.release()
            raise
        self._pid = os.getpid()
        self._state = threading.Condition(threading.Lock())
        """Guards all below; notified when there is something for the thread to do."""
        self._queue: list[_Item] = []
        self._called = False
        """Something in the queue is for the thread."""
        self._writing = False
        """A group is under way: there is one at a time."""
        self._due: _Written | None = None
        """Written by the host, to be committed by the thread."""
        self._host: Host | None = None
        self._closed = False
        self._failure: DiskError | None = None
        self._crowded = False
        """Puts came faster than they were committed: a short wait makes fewer, larger commits."""
        self._subscribers = Subscribers(path)
        self._thread = threading.Thread(target=self._work, name=f"store-writer {path.name}", daemon=True)
        self._thread.start()

    def submit(self, put: Put | None) -> Future[int]:
        """Queue one put, or a barrier. Never blocks on the disk; every refusal is in the future."""
        item = _Item(put)
        # From here on a cancel (e.g. by asyncio.wrap_future when a client leaves) cannot take the put back.
        item.future.set_running_or_notify_cancel()
        if os.getpid() != self._pid:  # before the lock, which another thread may have held at the fork
            item.future.set_exception(self._forked())
            return item.future
        with self._state:
            refusal = self._refusal()
            if refusal is None:
                self._enqueue(item)
        if refusal is not None:
            item.future.set_exception(refusal)
        return item.future

    def _enqueue(self, item: _Item) -> None:
        self._queue.append(item)
        host = self._host
        if host is None or item.put is None or not host.takes(item.put):
            self._called = True
            self._state.notify()
            return
        item.hosted = True
        if not self._writing:  # else the thread asks when it is done
            host.ask()

    def _forked(self) -> StoreError:
        return StoreError(
            f"The store {self._path} belongs to the process that opened it, not to its fork. "
            "Open it read-only here, or send the record to the parent."
        )

    def _refusal(self) -> StoreError | None:
        if self._closed:
            return StoreClosedError(f"The store {self._path} is closed; nothing more can be written. Open it again.")
        return self._failure

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        return self._subscribers.add(callback)

    def watch(self, callback: Watcher) -> Callable[[], None]:
        return self._subscribers.add_watcher(callback)

    def in_writer_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def host(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Have small puts of this thread written on its event loop. Returns what ends that. One loop at a time: a
        second one's puts are the thread's, as anybody's."""
        host = Host(loop, self._write_hosted)
        with self._state:
            if self._host is not None or os.getpid() != self._pid:
                return lambda: None
            self._host = host
        return partial(self._end_hosting, host)

    def stop(self) -> None:
        """Commit what is queued, then end the thread. Idempotent; every caller returns only when all is done."""
        if os.getpid() != self._pid:
            return
        with self._state:
            self._closed = True
            self._state.notify()
        self._thread.join()

    def release(self) -> None:
        """After `stop`: close the file. As the last connection, this one folds the log into the file and removes it."""
        if os.getpid() != self._pid:
            return
        with self._state:
            self._connection.close()
            self._lock.release()

    def _work(self) -> None:
        while (group := self._next()) is not None:
            self._commit(group)
            self._free()

    def _next(self) -> _Written | None:
        """The next group to commit, None at the end."""
        with self._state:
            self._state.wait_for(self._is_due)
            if self._due is not None:
                group, self._due = self._due, None
                return group
            if not self._queue:
                return None
            self._writing = True
        if self._crowded:
            time.sleep(WINDOW_S)
        with self._state:
            items, self._queue = self._queue[:_LARGEST_BATCH], self._queue[_LARGEST_BATCH:]
            self._called = bool(self._queue)
        self._crowded = len(items) > CROWD
        return self._write(items)

    def _is_due(self) -> bool:
        return self._due is not None or (not self._writing and (self._called or self._closed))

    def _write_hosted(self) -> int | None:
        """A group of what the host has put; its commit is the thread's. None while another group is under way."""
        with self._state:
            if self._writing:
                return None
            items = list(takewhile(attrgetter("hosted"), self._queue[:_LARGEST_HOSTED]))
            if not items:
                return 0
            del self._queue[: len(items)]
            self._writing = True
        group = self._write(items)
        with self._state:
            self._due = group
            self._state.notify()
        return len(items)

    def _free(self) -> None:
        """The next group may be written."""
        with self._state:
            self._writing = False
            hosted = not self._called and bool(self._queue)
            host = self._host if hosted else None
        if host is not None:
            try:
                host.ask_from_elsewhere()
            except RuntimeError:  # the loop is closed
                self._end_hosting(host)

    def _end_hosting(self, host: Host) -> None:
        with self._state:
            if self._host is not host:
                return
            self._host = None
            self._called = self._called or bool(self._queue)
            self._state.notify()

    def _write(self, items: Sequence[_Item]) -> _Written:
        """Run the statements of a group. A put that cannot be written becomes an error among the outcomes."""
        if self._failure is not None:  # queued before the disk died
            return _Written(items, [self._failure] * len(items), ())
        try:
            outcomes = iter(self._transaction.write([item.put for item in items if item.put]))
        except Exception as error:
            return self._failed(error, items)
        return _Written(items, [next(outcomes) if item.put else 0 for item in items], self._transaction.events)

    def _commit(self, group: _Written) -> None:
        """Make a group last, then tell of it."""
        if self._failure is None:
            try:
                self._transaction.commit()
            except Exception as error:
                group = self._failed(error, group.items)
        for item, outcome in zip(group.items, group.outcomes, strict=True):
            if isinstance(outcome, int):
                item.future.set_result(outcome)
            else:
                if outcome is not self._failure:
                    logger.warning("A record was not stored: %s", outcome)
                item.future.set_exception(outcome)
        if group.events:
            self._subscribers.tell(group.events)

    def _failed(self, error: Exception, items: Sequence[_Item]) -> _Written:
        """The disk is dead: nothing is written any more."""
        failure = DiskError(
            f"Writing {self._path} failed: {error}. This and everything put later is not stored; what was "
            "acknowledged before is. Check the disk (space, quota, mount), then open the store again."
        )
        failure.__cause__ = error
        logger.error("%s", failure)
        with self._state:
            self._failure = failure
        try:
            self._connection.rollback()
        except sqlite3.Error:
            logger.debug("Nothing to roll back in %s", self._path, exc_info=True)
        return _Written(items, [failure] * len(items), ())
