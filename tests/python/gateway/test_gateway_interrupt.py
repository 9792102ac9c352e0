"""A pause that interrupts: replies stop where they are and go on from exactly those tokens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import gateway_lab
import numpy as np
import pytest
from gateway_lab import END, Say, ScriptedPolicy

from lightning_lab.policy.base import Chunk
from lightning_lab.records import Sampling

TARGET = "one two three four"


class Slow(ScriptedPolicy):
    """One token at a time; a held reply waits before its eighth token."""

    async def _chunks(self, say: Say, sampling: Sampling) -> AsyncIterator[Chunk]:
        ids = [*say.text.encode(), END]
        limit = sampling.max_tokens or len(ids)
        for at, token in enumerate(ids[:limit]):
            if say.hold and at == 7:
                await self._hold(say)
            last = at + 1 == min(limit, len(ids))
            yield self._chunk([token], say, ("stop" if token == END else "length") if last else None)
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def one_token_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_lab, "make_policy", Slow)


def in_two_parts(prompt: str) -> Say:
    """Waits in the middle; whoever starts with a part of it gets the rest."""
    said = prompt.rpartition("[assistant]")[2]
    return Say(TARGET[len(said) :], hold=not said)


async def pause_in_the_middle(lab, **body):
    """The answer to a request whose generation was interrupted after seven tokens, and what the pause said."""
    answer = asyncio.create_task(lab.chat(**body))
    await lab.until(lambda: lab.policy.running == body.get("n", 1) and lab.gateway.admission.in_flight == 1)
    await asyncio.sleep(0.05)
    report = await asyncio.to_thread(lab.gateway.pause, deadline_s=60.0, mode="interrupt")
    assert lab.policy.running == 0 and lab.gateway.admission.held == 1
    lab.policy.version = 1
    lab.gateway.resume()
    return await answer, report


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_goes_on_from_its_own_tokens_under_the_next_version(make_lab, stream: bool) -> None:
    lab = make_lab(in_two_parts)
    answer, report = await pause_in_the_middle(lab, stream=stream)
    assert (report.in_flight, report.interrupted, report.aborted, report.left) == (1, 1, 0, 0)
    assert answer.status_code == 200 and (stream or answer.json()["choices"][0]["message"]["content"] == TARGET)
    (call,) = lab.calls()
    assert call.sampled_ids.tolist() == [*TARGET.encode(), END]
    assert call.versions.tolist() == [0] * 7 + [1] * (len(TARGET) + 1 - 7)
    assert bytes(call.prompt_ids[-11:].tolist()) == b"[assistant]"
    assert np.isfinite(call.logprobs).all() and call.held_s > 0


async def test_the_rest_has_the_rest_of_the_tokens_and_other_random_numbers(make_lab) -> None:
    lab = make_lab(in_two_parts)
    await pause_in_the_middle(lab, max_tokens=12)
    first, second = lab.policy.sampled
    assert (first.max_tokens, second.max_tokens) == (12, 5)
    assert first.seed is None or first.seed != second.seed
    (call,) = lab.calls()
    assert len(call.sampled_ids) == 12 and call.finish_reason == "length"


async def test_replies_of_one_request_go_on_together(make_lab) -> None:
    lab = make_lab(in_two_parts)
    answer, report = await pause_in_the_middle(lab, n=3)
    assert report.interrupted == 1
    assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [TARGET] * 3
    assert all(call.versions.tolist() == [0] * 7 + [1] * 12 for call in lab.calls())


async def test_a_stop_text_could_lie_across_so_such_a_reply_is_drained(make_lab) -> None:
    lab = make_lab(lambda prompt: Say("spoken words", hold=True))
    answer = asyncio.create_task(lab.chat(stop=["###"]))
    await lab.until(lambda: lab.policy.running == 1)
    pausing = asyncio.create_task(asyncio.to_thread(lab.gateway.pause, deadline_s=60.0, mode="interrupt"))
    await lab.until(lambda: lab.gateway.admission.paused)
    assert lab.gateway.admission.in_flight == 1
    lab.policy.release()
    report = await pausing
    lab.gateway.resume()
    assert (report.in_flight, report.interrupted, report.aborted) == (1, 0, 0)
    assert (await answer).json()["choices"][0]["message"]["content"] == "spoken words"


async def test_a_client_that_leaves_while_its_reply_is_interrupted_is_recorded(make_lab) -> None:
    lab = make_lab(in_two_parts)
    answer = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.policy.running == 1)
    await asyncio.sleep(0.05)
    await asyncio.to_thread(lab.gateway.pause, deadline_s=60.0, mode="interrupt")
    answer.cancel()
    await lab.until(lambda: lab.gateway.admission.held == 0)
    lab.gateway.resume()
    (call,) = lab.calls()
    assert not call.delivered and call.sampled_ids.tolist() == list(TARGET[:7].encode())


async def test_many_interruptions_lose_nothing(make_lab) -> None:
    """A reply of 200 tokens, one at a time, beside a learner that publishes all the while."""
    text = "".join(chr(97 + i % 26) for i in range(200))

    def rest(prompt: str) -> Say:
        said = prompt.rpartition("[assistant]")[2]
        return Say(text[len(said) :])

    lab = make_lab(rest)
    done = threading.Event()

    def publish() -> None:
        while not done.wait(0.002):
            lab.gateway.pause(deadline_s=60.0, mode="interrupt")
            lab.policy.version += 1
            lab.gateway.resume()

    learner = asyncio.create_task(asyncio.to_thread(publish))
    try:
        answers = await asyncio.gather(*(lab.chat(f"{i}") for i in range(8)))
    finally:
        done.set()
        await learner
    assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == [text] * 8
    for call in lab.calls():
        assert call.sampled_ids.tolist() == [*text.encode(), END]
        assert (np.diff(call.versions) >= 0).all()
