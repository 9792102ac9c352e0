"""Hold, drain, resume: who may generate now.

Everything here but `Admission.state` runs on one event loop, and no step between "is it open?" and "now I count"
awaits. So a request that arrives in the instant of a pause is either in flight or held, never both or neither, and the
number in flight never rises while admission is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

from lightning_lab.records import PauseMode

ABORT_GRACE_S = 5.0
"""How long an aborted generation may take to stop before a pause reports it as left."""


class PauseCancelledError(RuntimeError):
    """Admission was resumed by somebody else while a pause was still draining."""


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """Admission at one instant."""

    paused: bool
    in_flight: int
    """Requests that generate now."""
    held: int
    """Requests that wait for `Admission.resume`."""
    generating: frozenset[str] = field(default=frozenset(), compare=False)
    """Whose requests generate: rollout ids."""
    waiting: frozenset[str] = field(default=frozenset(), compare=False)
    """Whose requests are held."""


@dataclass(frozen=True, slots=True)
class PauseReport:
    """What a pause found and did."""

    in_flight: int
    """Requests that were generating when admission closed."""
    interrupted: int
    """Of those, how many go on from the tokens they have once admission opens."""
    aborted: int
    """Of those, how many were aborted because the deadline passed."""
    left: int
    """Of the aborted, how many run on all the same; anything but 0 is a fault of the policy."""
    waited_s: float


class Pausable(ABC):
    """Whoever lets calls in, or holds them."""

    @abstractmethod
    def pause(self, *, deadline_s: float = 60.0, mode: PauseMode = "wait") -> PauseReport: ...

    @abstractmethod
    def resume(self) -> None: ...

    @contextlib.contextmanager
    def paused(self, *, deadline_s: float = 60.0) -> Iterator[PauseReport]:
        """`pause`, and `resume` whatever happens inside."""
        report = self.pause(deadline_s=deadline_s)
        try:
            yield report
        finally:
            self.resume()


class Ticket:
    """A place in flight. ``async with`` waits for it, and gives it back whatever happens.

    A pause may interrupt what happens inside: the block is then left early and in silence, for its owner to see what
    is left and to come back with a new ticket.
    """

    __slots__ = ("_admission", "_stay", "abort", "held_s", "interruptible", "owner")

    def __init__(self, admission: Admission, abort: Callable[[], None], interruptible: bool, owner: str) -> None:
        self._admission = admission
        self._stay: asyncio.Timeout | None = None
        self.abort = abort
        self.interruptible = interruptible
        self.owner = owner
        self.held_s = 0.0

    def interrupt(self) -> None:
        """Leave the block now."""
        if self._stay is not None:
            self._stay.reschedule(0.0)

    async def __aenter__(self) -> Ticket:
        await self._admission._enter(self)
        if self.interruptible:
            self._stay = await asyncio.timeout(None).__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        stay, self._stay = self._stay, None
        try:
            if stay is not None:
                await stay.__aexit__(kind, error, trace)
        except TimeoutError:
            if stay is None or not stay.expired():
                raise
            return True
        finally:
            self._admission._leave(self)
        return False


class Admission:
    """The gate in front of the policy. Use it from one event loop; `state` may be read from any thread."""

    def __init__(self) -> None:
        self._in_flight: set[Ticket] = set()
        self._held: set[Ticket] = set()
        self._opened = asyncio.Event()
        self._opened.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._epoch = 0  # grows with every pause and resume
        self._last_resume = 0
        self._changing = threading.Lock()
        """Held while a request changes its place: no reader sees it in none, or in both."""

    @property
    def state(self) -> AdmissionState:
        """A consistent snapshot."""
        with self._changing:
            return AdmissionState(
                not self._opened.is_set(),
                len(self._in_flight),
                len(self._held),
                frozenset(ticket.owner for ticket in self._in_flight),
                frozenset(ticket.owner for ticket in self._held),
            )

    def admit(self, abort: Callable[[], None], *, interruptible: bool = False, owner: str = "") -> Ticket:
        """A ticket to enter with; ``abort`` is called, at most once per pause, when a deadline has passed.

        ``owner``: the rollout that asks.
        """
        return Ticket(self, abort, interruptible, owner)

    async def pause(self, deadline_s: float, mode: PauseMode = "wait") -> PauseReport:
        """Close, then wait until nothing is in flight; past the deadline abort what is left.

        ``interrupt`` does not wait for the interruptible: they leave at once, to be held and to go on after `resume`.
        Admission stays closed afterwards, unless this raises or is cancelled: then it is open again.
        Raises `PauseCancelledError` when `resume` is called meanwhile.
        """
        self._opened.clear()
        self._epoch += 1
        epoch, started, before, aborted = self._epoch, time.monotonic(), len(self._in_flight), 0
        interrupted = self._interrupt_all() if mode == "interrupt" else 0
        try:
            if not await self._drained(deadline_s):
                self._check_not_resumed(epoch)
                aborted = self._abort_all()
                await self._drained(ABORT_GRACE_S)
            self._check_not_resumed(epoch)
        except BaseException:
            if epoch == self._epoch:
                self.resume()
            raise
        return PauseReport(before, interrupted, aborted, len(self._in_flight), time.monotonic() - started)

    async def freeze(self, freeze: Callable[[], None]) -> PauseReport:
        """Close, and let ``freeze`` stop the engine: who is in flight stays there, and goes on when the engine does.

        Admission stays closed afterwards, unless this raises or is cancelled: then it is open again.
        """
        self._opened.clear()
        self._epoch += 1
        epoch, started = self._epoch, time.monotonic()
        try:
            await asyncio.to_thread(freeze)
            self._check_not_resumed(epoch)
        except BaseException:
            if epoch == self._epoch:
                self.resume()
            raise
        frozen = len(self._in_flight)
        return PauseReport(frozen, frozen, 0, 0, time.monotonic() - started)

    def resume(self) -> None:
        """Let everybody in who was held. Harmless when nothing is paused."""
        self._last_resume = self._epoch = self._epoch + 1
        self._opened.set()

    async def _enter(self, ticket: Ticket) -> None:
        if not self._opened.is_set():
            await self._hold(ticket)
        with self._changing:
            self._held.discard(ticket)
            self._in_flight.add(ticket)
        self._idle.clear()

    async def _hold(self, ticket: Ticket) -> None:
        arrived = time.monotonic()
        with self._changing:
            self._held.add(ticket)
        try:
            while not self._opened.is_set():  # a new pause may have begun before this task woke up
                await self._opened.wait()
        except BaseException:
            with self._changing:
                self._held.discard(ticket)
            raise
        finally:
            ticket.held_s = time.monotonic() - arrived

    def _leave(self, ticket: Ticket) -> None:
        with self._changing:
            self._in_flight.discard(ticket)
        if not self._in_flight:
            self._idle.set()

    async def _drained(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _check_not_resumed(self, epoch: int) -> None:
        if self._last_resume > epoch:
            raise PauseCancelledError("admission was resumed while a pause was draining; pause again before updating")

    def _interrupt_all(self) -> int:
        tickets = [ticket for ticket in self._in_flight if ticket.interruptible]
        for ticket in tickets:
            ticket.interrupt()
        return len(tickets)

    def _abort_all(self) -> int:
        tickets = list(self._in_flight)
        for ticket in tickets:
            ticket.abort()
        return len(tickets)
