"""Waiting for the store on an event loop: one wake-up for all calls of a group commit, not one for each."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from functools import partial


class Commits:
    """Of one event loop, which is the one that first asks."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: list[tuple[asyncio.Future[int], Future[int]]] = []
        self._lock = threading.Lock()

    def wait(self, written: Future[int]) -> asyncio.Future[int]:
        """Done when ``written`` is, with its result or its error. Giving up takes no write back."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        waiter: asyncio.Future[int] = self._loop.create_future()
        written.add_done_callback(partial(self._note, waiter))
        return waiter

    def _note(self, waiter: asyncio.Future[int], written: Future[int]) -> None:
        """In the thread that writes."""
        with self._lock:
            self._done.append((waiter, written))
            first = len(self._done) == 1
        if first and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all who waited with it
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        with self._lock:
            done, self._done = self._done, []
        for waiter, written in done:
            if waiter.done():  # nobody waits any more
                continue
            error = written.exception()
            if error is None:
                waiter.set_result(written.result())
            else:
                waiter.set_exception(error)
