"""Who may start a process next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lightning_lab.controller import starts
from lightning_lab.controller.starts import Rank, Starts

AGENT, GRADER = True, False


class Bench:
    """Processes that start when they may and end when they are told."""

    def __init__(self, at_once: int) -> None:
        self.starts = Starts(at_once)
        self.began: list[Rank] = []
        self.over: dict[Rank, Callable[[], None]] = {}

    async def start(self, rank: Rank) -> None:
        async with self.starts.turn(rank) as started:
            self.began.append(rank)
            self.over[rank] = started
            await asyncio.sleep(60)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_graders_come_first_and_then_who_was_submitted_earlier():
    bench = Bench(1)
    tasks = [asyncio.create_task(bench.start((AGENT, 0.0)))]
    await settled()
    for rank in ((AGENT, 3.0), (GRADER, 2.0), (AGENT, 1.0), (GRADER, 1.0)):
        tasks.append(asyncio.create_task(bench.start(rank)))
    await settled()
    assert bench.began == [(AGENT, 0.0)]
    for _ in range(4):
        bench.over[bench.began[-1]]()
        bench.over[bench.began[-1]]()  # a second time gives no second turn away
        await settled()
    assert bench.began[1:] == [(GRADER, 1.0), (GRADER, 2.0), (AGENT, 1.0), (AGENT, 3.0)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_that_hangs_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(starts, "_LONGEST_TURN_S", 0.01)
    bench = Bench(1)
    tasks = [asyncio.create_task(bench.start((AGENT, float(n)))) for n in range(3)]
    async with asyncio.timeout(10):
        while len(bench.began) < 3:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("moment", ["waiting", "given its turn", "started"])
async def test_a_cancelled_one_leaves_its_turn_to_others(moment: str):
    bench = Bench(1)
    first = asyncio.create_task(bench.start((AGENT, 0.0)))
    await settled()
    second = asyncio.create_task(bench.start((AGENT, 1.0)))
    await settled()
    if moment != "waiting":
        first.cancel()
    if moment == "given its turn":
        await asyncio.gather(first, return_exceptions=True)  # the turn is the second one's, which has not run since
    if moment == "started":
        await settled()
    second.cancel()
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    third = asyncio.create_task(bench.start((AGENT, 2.0)))
    await settled()
    assert bench.began[-1] == (AGENT, 2.0)
    third.cancel()
    await asyncio.gather(third, return_exceptions=True)
