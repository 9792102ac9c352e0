"""Waiting for the lab's threads from a cell."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

INTERRUPT_S = 0.1
"""How soon an interrupt is noticed. ipykernel (7.4) puts it on the loop from a signal handler, which does not wake a
loop that sleeps: without a tick, an interrupted cell would go on waiting until something else happens."""


async def wait_for(future: Future[T]) -> T:
    """Await a thread's future from any running event loop.

    Cancelling the waiting coroutine (an interrupted cell) stops the waiting only: unlike `asyncio.wrap_future`,
    nothing is passed on to ``future``.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def wake(_: Future[T]) -> None:
        # The loop may be closed by now, when the waiter was interrupted and its program ended.
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(wake)
    while not future.done():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INTERRUPT_S):
                await done.wait()
    return future.result()
