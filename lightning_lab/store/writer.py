"""The one thread that writes: takes everything queued, one transaction, commit, then tells.

The thread sleeps on its queue; nothing polls. Under load commits become larger, not more frequent (group commit).
"""

from __future__ import annotations

import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from lightning_lab.store.errors import DiskError, StoreClosedError, StoreError
from lightning_lab.store.lock import WriterLock
from lightning_lab.store.schema import Durability, open_writer
from lightning_lab.store.transaction import Put, Transaction
from lightning_lab.store.writing import Subscriber, Subscribers, Watcher

_LARGEST_BATCH = 4096
_CROWD = 2
"""Puts in one commit; beyond it there is a crowd."""
_WINDOW_S = 0.015
"""How long a crowd gathers. A commit is a dozen statements, however many puts it has, and after each the writer waits
for the interpreter, which the event loop of a busy gateway holds."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Item:
    """A put waiting for its commit. ``put`` is None for a barrier: it resolves when all before it is committed."""

    put: Put | None
    future: Future[int] = field(default_factory=Future)


class Writer:
    """Owns the writing connection. Thread-safe."""

    def __init__(self, path: Path, durability: Durability) -> None:
        """Raises `StoreBusyError` if somebody else writes this file, or another `StoreError` if it cannot be opened."""
        self._path = path
        self._lock = WriterLock(path)
        try:
            self._connection = open_writer(path, durability)
        except BaseException:
            self._lock.release()
            raise
        self._pid = os.getpid()
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        """Held to enqueue and to close, so that nothing is queued behind the end."""
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
        if os.getpid() != self._pid:  # before the gate, which another thread may have held at the fork
            item.future.set_exception(self._forked())
            return item.future
        with self._gate:
            refusal = self._refusal()
            if refusal is None:
                self._queue.put(item)
        if refusal is not None:
            item.future.set_exception(refusal)
        return item.future

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

    def stop(self) -> None:
        """Commit what is queued, then end the thread. Idempotent; every caller returns only when all is done."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def release(self) -> None:
        """After `stop`: close the file. As the last connection, this one folds the log into the file and removes it."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            self._connection.close()
            self._lock.release()

    def _work(self) -> None:
        transaction = Transaction(self._connection)
        open_ = True
        while open_:
            items, open_ = self._take()
            self._crowded = len(items) > _CROWD
            self._commit(transaction, items)

    def _take(self) -> tuple[list[_Item], bool]:
        """Everything queued, at least one item; False with the last."""
        if self._crowded:
            time.sleep(_WINDOW_S)  # before the first is taken: whoever puts it wakes nobody
        items: list[_Item] = []
        item = self._queue.get()
        while item is not None:
            items.append(item)
            if len(items) == _LARGEST_BATCH:
                return items, True
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return items, True
        return items, False

    def _commit(self, transaction: Transaction, items: Sequence[_Item]) -> None:
        if not items:
            return
        if self._failure is not None:  # queued before the disk died
            for item in items:
                item.future.set_exception(self._failure)
            return
        try:
            outcomes = self._write(transaction, items)
        except Exception as error:
            self._fail(error, items)
            return
        for item, outcome in zip(items, outcomes, strict=True):
            if isinstance(outcome, int):
                item.future.set_result(outcome)
            else:
                logger.warning("A record was not stored: %s", outcome)
                item.future.set_exception(outcome)
        if transaction.events:
            self._subscribers.tell(transaction.events)

    def _write(self, transaction: Transaction, items: Sequence[_Item]) -> list[int | StoreError]:
        """One transaction. A put that cannot be written becomes an error in the list; a dead disk raises."""
        outcomes = iter(transaction.apply([item.put for item in items if item.put]))
        return [next(outcomes) if item.put else 0 for item in items]

    def _fail(self, error: Exception, items: Sequence[_Item]) -> None:
        failure = DiskError(
            f"Writing {self._path} failed: {error}. This and everything put later is not stored; what was "
            "acknowledged before is. Check the disk (space, quota, mount), then open the store again."
        )
        failure.__cause__ = error
        logger.error("%s", failure)
        with self._gate:
            self._failure = failure
        try:
            self._connection.rollback()
        except sqlite3.Error:
            logger.debug("Nothing to roll back in %s", self._path, exc_info=True)
        for item in items:
            item.future.set_exception(failure)
