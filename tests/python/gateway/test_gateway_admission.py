"""Admission, alone: no interleaving may lose a request, count it twice, or let one in after closing."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_lab.gateway.admission import Admission, AdmissionState, PauseCancelledError


@dataclass
class Visitor:
    """A request that stays in flight until it is told to leave."""

    admission: Admission
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    inside: bool = False
    aborted: int = 0
    task: asyncio.Task[None] | None = None

    def arrive(self) -> Visitor:
        self.task = asyncio.create_task(self._visit())
        return self

    async def _visit(self) -> None:
        async with self.admission.admit(self._abort):
            self.inside = True
            try:
                await self.leave.wait()
            finally:
                self.inside = False

    def _abort(self) -> None:
        self.aborted += 1
        self.leave.set()


class Crowd:
    """Visitors, and what must hold of them at every moment."""

    def __init__(self) -> None:
        self.admission = Admission()
        self.visitors: list[Visitor] = []
        self.pauses: list[asyncio.Task[object]] = []
        self.in_flight_at_close: int | None = None

    def arrive(self) -> None:
        self.visitors.append(Visitor(self.admission).arrive())

    def pause(self) -> None:
        self.pauses.append(asyncio.create_task(self.admission.pause(60)))

    def resume(self) -> None:
        self.admission.resume()

    def finish(self) -> None:
        inside = [one for one in self.visitors if one.inside and not one.leave.is_set()]
        if inside:
            inside[0].leave.set()

    def cancel(self) -> None:
        waiting = [one for one in self.visitors if one.task and not one.task.done()]
        if waiting:
            assert waiting[-1].task
            waiting[-1].task.cancel()

    def interrupt_pause(self) -> None:
        if self.pauses:
            self.pauses[-1].cancel()

    def check(self) -> None:
        state = self.admission.state
        present = [one for one in self.visitors if one.task and not one.task.done()]
        assert state.in_flight == sum(one.inside for one in present)
        if not state.paused:
            self.in_flight_at_close = None
            return
        if self.in_flight_at_close is not None:
            assert state.in_flight <= self.in_flight_at_close, "somebody entered while admission was closed"
        self.in_flight_at_close = state.in_flight

    async def end(self) -> None:
        for visitor in self.visitors:
            visitor.leave.set()
        await asyncio.sleep(0)  # pauses that were only asked for begin now
        self.admission.resume()
        everybody = [one.task for one in self.visitors if one.task]
        await asyncio.wait_for(asyncio.gather(*everybody, *self.pauses, return_exceptions=True), 5)
        assert self.admission.state == AdmissionState(paused=False, in_flight=0, held=0)


STEPS = ["arrive", "pause", "resume", "finish", "cancel", "interrupt_pause", "settle", "tick"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_any_interleaving_keeps_the_invariants(steps):
    async def play() -> None:
        crowd = Crowd()
        for step in steps:
            if step == "tick":
                await asyncio.sleep(0)
            elif step == "settle":
                for _ in range(5):
                    await asyncio.sleep(0)
                state = crowd.admission.state
                present = sum(1 for one in crowd.visitors if one.task and not one.task.done())
                assert state.in_flight + state.held == present, "a request is neither in flight nor held, or both"
                assert state.paused or state.held == 0
            else:
                getattr(crowd, step)()
            crowd.check()
        await crowd.end()

    asyncio.run(play())


async def test_verl_7511_a_request_in_the_instant_of_the_pause_is_held():
    admission = Admission()
    pause = asyncio.create_task(admission.pause(60))
    visitor = Visitor(admission).arrive()
    report = await pause
    assert (report.in_flight, report.aborted, report.left) == (0, 0, 0)
    assert admission.state == AdmissionState(paused=True, in_flight=0, held=1)
    assert not visitor.inside
    admission.resume()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert visitor.inside
    visitor.leave.set()
    assert visitor.task
    await visitor.task


async def test_a_request_just_before_the_pause_is_drained():
    admission = Admission()
    visitor = Visitor(admission).arrive()
    await asyncio.sleep(0)
    pause = asyncio.create_task(admission.pause(60))
    await asyncio.sleep(0)
    assert admission.state == AdmissionState(paused=True, in_flight=1, held=0)
    visitor.leave.set()
    report = await pause
    assert (report.in_flight, report.aborted) == (1, 0)


async def test_past_the_deadline_the_rest_is_aborted():
    admission = Admission()
    visitors = [Visitor(admission).arrive() for _ in range(3)]
    await asyncio.sleep(0)
    report = await admission.pause(0.01)
    assert (report.in_flight, report.aborted, report.left) == (3, 3, 0)
    assert [one.aborted for one in visitors] == [1, 1, 1]
    assert admission.state.paused


async def test_who_ignores_the_abort_is_reported(monkeypatch):
    monkeypatch.setattr("lightning_lab.gateway.admission.ABORT_GRACE_S", 0.01)
    admission = Admission()
    async with admission.admit(lambda: None):
        report = await admission.pause(0.01)
    assert (report.aborted, report.left) == (1, 1)


async def test_resuming_a_pause_that_drains_is_told_to_it():
    admission = Admission()
    visitor = Visitor(admission).arrive()
    await asyncio.sleep(0)
    pause = asyncio.create_task(admission.pause(60))
    await asyncio.sleep(0)
    admission.resume()
    visitor.leave.set()
    with pytest.raises(PauseCancelledError):
        await pause
    assert not admission.state.paused


async def test_an_interrupted_pause_opens_again():
    admission = Admission()
    visitor = Visitor(admission).arrive()
    await asyncio.sleep(0)
    pause = asyncio.create_task(admission.pause(60))
    await asyncio.sleep(0)
    pause.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await pause
    assert not admission.state.paused
    visitor.leave.set()
