"""``concurrency="auto"``: how many rollouts run at one time, by what the model and this machine can take.

Additive increase, multiplicative decrease, every two seconds, as a network's senders find their rate:

* a quarter fewer, when more than three tasks per core want to run, or when calls take three times as long as they once
  did: they wait in the policy's own queue then, and further agents would only make it longer;
* one more, when every place is taken and rollouts wait for one;
* otherwise, and while the learner holds the calls, as it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lightning_lab.records import Event
from lightning_lab.store import Store

PERIOD_S = 2.0
_RUNNABLE_PER_CORE = 3.0
_SLOWER = 3.0
_FEWER = 0.75
_LOOKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One period. Means over it, where not said otherwise."""

    runnable: float
    """Tasks of the machine that ran or wanted to."""
    in_flight: float
    """Calls in the policy."""
    calls: int
    """That ended in the period."""
    held: bool
    """Whether the learner held calls at some time."""
    is_full: bool
    """Whether all places are taken, at its end."""
    waiting: int
    """Rollouts in the queue, at its end."""


class Pace:
    """``least`` to ``most`` rollouts (one and 32 per core, unless told otherwise); it begins with two per core."""

    def __init__(self, *, least: int | None = None, most: int | None = None, cores: int | None = None) -> None:
        self._cores = cores or os.cpu_count() or 1
        self._least, self._most = least or self._cores, most or 32 * self._cores
        self.concurrency = min(max(2 * self._cores, self._least), self._most)
        self._quickest_s = float("inf")

    def adapt(self, seen: Seen) -> int:
        """The new concurrency."""
        if seen.held:
            return self.concurrency
        if seen.runnable > _RUNNABLE_PER_CORE * self._cores or self._calls_are_slow(seen):
            self.concurrency = max(self._least, int(self.concurrency * _FEWER))
        elif seen.is_full and seen.waiting:
            self.concurrency = min(self._most, self.concurrency + 1)
        return self.concurrency

    def _calls_are_slow(self, seen: Seen) -> bool:
        """By Little's law a call takes as long as there are calls in flight for each that ends in a second."""
        if not seen.calls:
            return False
        took_s = seen.in_flight * PERIOD_S / seen.calls
        self._quickest_s = min(self._quickest_s, took_s) if took_s else self._quickest_s
        return took_s > _SLOWER * self._quickest_s


class Admission(Protocol):
    """What a gateway tells of its calls."""

    @property
    def in_flight(self) -> int: ...
    @property
    def held(self) -> int: ...


async def keep(
    pace: Pace,
    store: Store,
    admission: Callable[[], Admission | None],
    places: Callable[[], tuple[bool, int]],
    change: Callable[[int], None],
) -> None:
    """Look, adapt, tell ``change``; never ends. ``places``: whether all are taken, and how many rollouts wait."""
    ended = 0

    def count(events: Sequence[Event]) -> None:
        nonlocal ended
        ended += sum(event.kind == "call" for event in events)

    stop = store.subscribe(count)
    try:
        while True:
            before, runnable, in_flight, held = ended, 0, 0, False
            for _ in range(_LOOKS):
                await asyncio.sleep(PERIOD_S / _LOOKS)
                runnable += _runnable_now()
                if (calls := admission()) is not None:
                    in_flight, held = in_flight + calls.in_flight, held or calls.held > 0
            is_full, waiting = places()
            seen = Seen(
                runnable=runnable / _LOOKS,
                in_flight=in_flight / _LOOKS,
                calls=ended - before,
                held=held,
                is_full=is_full,
                waiting=waiting,
            )
            change(pace.adapt(seen))
    finally:
        stop()


def _runnable_now() -> int:
    """Tasks of this machine that run or want to, this one left out."""
    return int(Path("/proc/loadavg").read_bytes().split()[3].split(b"/")[0]) - 1
