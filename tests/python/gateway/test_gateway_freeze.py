"""A pause that interrupts a policy whose engine can stand still: replies stay open there and go on afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import gateway_lab
import pytest
from gateway_lab import END, Lab, Say, ScriptedPolicy

from lightning_lab.policy.base import Chunk, PolicyError, has_engine
from lightning_lab.records import Sampling

TEXT = "one two three four"


class Engine(ScriptedPolicy):
    """Tells a reply when it is whole, with the version of each token; stands still at its eighth."""

    thawed: asyncio.Event | None = None
    loop: asyncio.AbstractEventLoop | None = None
    refuses = False
    told: list[str]

    def freeze(self) -> None:
        if self.refuses:
            raise PolicyError("The engine does not answer.")
        self.told = [*getattr(self, "told", []), "freeze"]

    def thaw(self) -> None:
        self.told = [*getattr(self, "told", []), "thaw"]
        if self.loop is not None and self.thawed is not None:
            self.loop.call_soon_threadsafe(self.thawed.set)

    async def _chunks(self, say: Say, sampling: Sampling) -> AsyncIterator[Chunk]:
        self.loop, self.thawed = asyncio.get_running_loop(), asyncio.Event()
        first = self._chunk([*TEXT[:7].encode()], say, None)
        await self.thawed.wait()
        yield first
        yield self._chunk([*TEXT[7:].encode(), END], say, "stop")


@pytest.fixture
def lab(make_lab: Any, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(gateway_lab, "make_policy", Engine)
    made: Lab = make_lab(lambda prompt: TEXT)
    assert has_engine(made.policy)
    return made


@pytest.mark.parametrize("body", [{}, {"stop": ["###"]}, {"stream": True}])
async def test_a_frozen_reply_stays_open_and_ends_under_the_next_version(lab: Lab, body: dict[str, Any]) -> None:
    answer = asyncio.create_task(lab.chat(**body))
    await lab.until(lambda: lab.policy.thawed is not None)
    report = await asyncio.to_thread(lab.gateway.pause, deadline_s=60.0, mode="interrupt")
    assert (report.in_flight, report.interrupted, report.aborted, report.left) == (1, 1, 0, 0)
    held = asyncio.create_task(lab.chat("another"))
    await lab.until(lambda: lab.gateway.admission.held == 1)
    assert lab.gateway.admission.in_flight == 1 and lab.policy.cancelled == 0
    lab.policy.version = 1
    lab.gateway.resume()
    assert (await answer).status_code == 200
    held.cancel()
    await lab.settled()
    call = lab.calls()[0]
    assert call.sampled_ids.tolist() == [*TEXT.encode(), END]
    assert call.versions.tolist() == [0] * 7 + [1] * (len(TEXT) + 1 - 7)
    assert lab.policy.told[:2] == ["freeze", "thaw"]


async def test_an_engine_that_refuses_to_stand_still_leaves_admission_open(lab: Lab) -> None:
    lab.policy.refuses = True
    with pytest.raises(PolicyError, match="does not answer"):
        await asyncio.to_thread(lab.gateway.pause, deadline_s=60.0, mode="interrupt")
    assert not lab.gateway.admission.paused
