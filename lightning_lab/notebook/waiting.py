"""Waiting for the lab's threads from a cell."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


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
    await done.wait()
    return future.result()
