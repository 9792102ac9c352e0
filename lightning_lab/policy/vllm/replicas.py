"""The servers that answer: who is asked, who is well, and starting again one that died."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.vllm.connection import Connection, Loop
from lightning_lab.policy.vllm.errors import EngineDiedError
from lightning_lab.policy.vllm.server import START_S, Server

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

RESTARTS = 3
"""Of one server within `_RESTARTS_S`; then it stays down and says why."""
_RESTARTS_S = 600.0
_REMEMBERED = 100_000
"""Rollouts whose server is known."""
_LOOK_S = 0.05
_LOOK_AGAIN_S = 0.5
"""Between two looks at a server that somebody else is to start again."""


class Replica:
    """One server, and how much it has to do."""

    def __init__(self, connection: Connection, server: Server | None = None) -> None:
        """Without a ``server`` it was started by somebody else, who also keeps it well."""
        self.connection, self.server = connection, server
        self.name = connection.name
        self.open_calls = 0
        self.ready = False
        self.failure: PolicyError | None = None
        """Why it will not come back."""
        self.holds: Path | None = None
        """The model directory that has its weights; None where they may be of two."""
        self.version = 0
        """Of its weights."""
        self.stands = False
        """Whether it was told last to stand still."""
        self.lock = threading.Lock()
        """Held by who starts its process again."""
        self.restarts: list[float] = []
        self._callers: set[asyncio.Task[Any] | None] = set()

    @contextlib.contextmanager
    def call(self) -> Iterator[Connection]:
        """Counted while it lasts. Raises `failure` when the server is given up meanwhile."""
        caller = asyncio.current_task()
        self._callers.add(caller)
        self.open_calls += 1
        try:
            yield self.connection
        except asyncio.CancelledError:
            if self.failure is None:
                raise
            raise self.failure from None
        finally:
            self.open_calls -= 1
            self._callers.discard(caller)

    async def give_up(self, failure: PolicyError) -> None:
        """Nobody is sent there any more, and nobody waits for what it had begun."""
        self.ready, self.failure = False, failure
        for caller in self._callers:
            if caller is not None:
                caller.cancel()

    async def wait_ready(self) -> None:
        """Until it answers: a server that is started again is worth the wait. Raises `PolicyError`."""
        end = time.monotonic() + START_S
        while not self.ready:
            if self.failure is not None:
                raise self.failure
            if time.monotonic() > end:
                raise EngineDiedError(f"{self.name} does not answer.")
            await asyncio.sleep(_LOOK_S)


class Replicas:
    """All servers of a policy. ``begin(replica)`` starts one that has a process, ``prepare`` makes it ready."""

    def __init__(self, loop: Loop, begin: Callable[[Replica], None], prepare: Callable[[Replica], None]) -> None:
        self.all: Sequence[Replica] = ()
        self._loop, self._begin, self._prepare = loop, begin, prepare
        self._places: OrderedDict[str, Replica] = OrderedDict()
        self._closing = False

    def start(self, replicas: Sequence[Replica]) -> None:
        """All of them, at one time. Raises `PolicyError`."""
        self.all = tuple(replicas)
        self.each(self._bring_up)

    def close(self) -> None:
        """End those that were started here. Idempotent."""
        self._closing = True
        for replica in self.all:
            replica.ready = False
            if replica.server is not None:
                replica.server.stop()
            with contextlib.suppress(PolicyError):
                self._loop.wait(replica.connection.close())

    def of(self, rollout_id: str) -> Replica:
        """The rollout's server: the one that holds its prefix, or while that is down the one with the least to do.

        Raises the reason when none is left.
        """
        known = self._places.get(rollout_id)
        if known is None or not known.ready or known.failure is not None:
            left = self.left
            if not left:
                raise self.all[0].failure or EngineDiedError("No vLLM server is left.")
            known = min(left, key=lambda replica: (not replica.ready, replica is not known, replica.open_calls))
        self._places[rollout_id] = known
        self._places.move_to_end(rollout_id)
        if len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)
        return known

    @property
    def left(self) -> Sequence[Replica]:
        """Those that are not given up."""
        return [replica for replica in self.all if replica.failure is None]

    def each(self, work: Callable[[Replica], None]) -> None:
        """For all that are left, at one time; raises the first error when all are done."""
        with ThreadPoolExecutor(len(self.all)) as threads:
            finished([threads.submit(work, replica) for replica in self.left])

    def begin(self, work: Callable[[Replica], Coroutine[Any, Any, _T]]) -> Sequence[Future[_T]]:
        """For all that are left, at one time; nobody waits for it yet."""
        return [self._loop.submit(work(replica)) for replica in self.left]

    def all_do(self, work: Callable[[Replica], Coroutine[Any, Any, None]]) -> None:
        """`begin`, and wait for it."""
        finished(self.begin(work))

    def lost(self, replica: Replica) -> None:
        """Somebody else's server does not answer: nobody is sent there until it does again."""
        if not replica.ready or self._closing:
            return
        replica.ready = False
        threading.Thread(
            target=self._look_again, args=(replica,), name=f"lightning-lab-{replica.name}", daemon=True
        ).start()

    def died(self, replica: Replica, status: int) -> None:
        """Start it again, unless it dies all the time. Called in the thread that watched it."""
        with replica.lock:
            if self._closing or replica.server is None or replica.server.alive:  # who put it back was quicker
                return
            replica.ready = False
            now = time.monotonic()
            replica.restarts = [at for at in replica.restarts if now - at < _RESTARTS_S]
            words = f"{replica.name} ended with {status}" + (" (killed)" if status == -9 else "")
            if len(replica.restarts) >= RESTARTS:
                replica.failure = EngineDiedError(
                    f"{words}, for the {RESTARTS + 1}th time in ten minutes. Its log: {replica.server.log}"
                )
                return
            replica.restarts.append(now)
            _log.warning("%s; it is started again", words)
            try:
                self._bring_up(replica)
            except PolicyError as error:
                replica.failure = error

    def _look_again(self, replica: Replica) -> None:
        end, reason = time.monotonic() + START_S, PolicyError("It was not asked.")
        while not self._closing and time.monotonic() < end:
            time.sleep(_LOOK_AGAIN_S)
            try:
                self._bring_up(replica)
                return
            except PolicyError as error:
                reason = error
        replica.failure = reason

    def _bring_up(self, replica: Replica) -> None:
        if replica.server is not None:
            self._begin(replica)
            if self._closing:  # meanwhile
                replica.server.stop()
                return
        self._prepare(replica)


def finished(work: Sequence[Future[Any]]) -> None:
    """Waits for all; raises the first error."""
    for error in [done.exception() for done in work]:
        if error is not None:
            raise error
