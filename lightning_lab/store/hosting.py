"""An event loop that writes what it puts: when it does, and what it leaves to the writer's thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from lightning_lab.records import Call
from lightning_lab.store.transaction import Put

CROWD = 2
"""Puts in one commit; beyond it there is a crowd."""
WINDOW_S = 0.025
"""How long a crowd gathers, at most: a commit is a dozen statements, however many puts it has."""
_LEAST_S = 0.008
"""How long it gathers on a loop that has nothing else to do."""
_IDLE_TURN_S = 40e-6
"""A turn of the loop in which nothing happened takes less."""
_MOST_TOKENS = 1 << 15
"""Of a call that a loop writes: a millisecond of its time."""


class Host:
    """Of the loop that runs in this thread. ``write`` writes a group of what was put here, and tells how many puts they
    were; None while another group is being committed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[], int | None]) -> None:
        self._loop = loop
        self._write = write
        self._thread = threading.get_ident()
        self._asked = False
        self._crowded = False
        self._until = 0.0

    def takes(self, put: Put) -> bool:
        """Whether the put is made here and is small."""
        if threading.get_ident() != self._thread:
            return False
        if put.method == "call":
            call = put.arguments[1]
            return isinstance(call, Call) and len(call.prompt_ids) + len(call.sampled_ids) <= _MOST_TOKENS
        return put.method == "delivered"

    def ask(self) -> None:
        """Something waits to be written. In the loop's thread."""
        if self._asked:
            return
        self._asked = True
        if self._crowded:
            self._until = time.perf_counter() + WINDOW_S
            self._loop.call_later(_LEAST_S, self._look)
        else:
            self._loop.call_soon(self._go)

    def ask_from_elsewhere(self) -> None:
        """The same in any thread. Raises RuntimeError where the loop is closed."""
        self._loop.call_soon_threadsafe(self.ask)

    def _look(self, last: float = 0.0) -> None:
        """Write once a turn of the loop brought nothing: of a busy one the next turn may bring more puts, and writing
        takes no time that it has to spare."""
        now = time.perf_counter()
        if now - last < _IDLE_TURN_S or now > self._until:
            self._go()
        else:
            self._loop.call_soon(self._look, now)

    def _go(self) -> None:
        self._asked = False
        count = self._write()
        if count is not None:
            self._crowded = count > CROWD
