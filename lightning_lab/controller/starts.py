"""Who starts a process next. Begun all at one time, a burst of processes shares the cores, and each of them is late.

Graders come before agents, since a rollout near its end gives a group to the learner, and what was submitted earlier
comes first. A turn ends when the process runs code of its own, or after a while: imports that hang hold up nobody.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_LONGEST_TURN_S = 0.25

Rank = tuple[bool, float]
"""Whether it is an agent, and when it was submitted: the lowest goes first."""


class Starts:
    """Turns to start a process, ``at_once`` of them at one time. Use it on the controller's loop only."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: list[tuple[Rank, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def turn(self, rank: Rank) -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn. It is over when what is given is called, when it took too long, or with the block."""
        mine = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._order), mine))
        self._next()
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():  # it came just now
                self._end()
            raise
        end = _once(self._end)
        timer = asyncio.get_running_loop().call_later(_LONGEST_TURN_S, end)
        try:
            yield end
        finally:
            timer.cancel()
            end()

    def _end(self) -> None:
        self._free += 1
        self._next()

    def _next(self) -> None:
        while self._free and self._waiting:
            _, _, waiting = heapq.heappop(self._waiting)
            if not waiting.done():
                self._free -= 1
                waiting.set_result(None)


def _once(function: Callable[[], None]) -> Callable[[], None]:
    left = [function]

    def call() -> None:
        if left:
            left.pop()()

    return call
