"""Faults that users of other systems reported around clients, pauses and versions, as small inputs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from gateway_lab import END, HASTY, Lab, Say, chat_body

from lightning_lab.gateway import PauseReport
from lightning_lab.policy.base import Chunk
from lightning_lab.samples import build_samples, delivered_calls


def sdk(lab: Lab, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=lab.access.url + "/v1", api_key=lab.access.key, **options)


async def trained(lab: Lab) -> list[list[int]]:
    """The trained ids of every sample of rollout ``r-1``."""
    samples = build_samples(delivered_calls(await lab.settled())).samples
    return [sample.ids[sample.mask].tolist() for sample in samples]


def ids_of(text: str) -> list[int]:
    return [*text.encode(), END]


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_verifiers_2036_the_same_body_twice_by_a_client_that_retries_is_one_trained_call(make_lab, stream):
    replies = iter(["first", "second"])
    lab = make_lab(lambda _: next(replies))
    async with lab.client() as client:
        for count in (0, 1):
            client.headers["x-stainless-retry-count"] = str(count)
            answer = await client.post("/chat/completions", json=chat_body(stream=stream))
            assert "first" in answer.text
    assert await trained(lab) == [ids_of("first")]


async def test_verifiers_2036_a_retry_of_a_call_that_timed_out_is_one_trained_call(make_lab):
    """The SDK's own time-out and retry, unmodified."""
    replies = iter([Say("lost", hold=True), Say("kept")])
    lab = make_lab(lambda _: next(replies))
    async with sdk(lab, timeout=0.5, max_retries=1) as client:
        answer = await client.chat.completions.create(**chat_body())
    assert answer.choices[0].message.content == "kept"
    assert await trained(lab) == [ids_of("kept")]
    assert sorted((call.kind, call.delivered) for call in lab.calls()) == [("retry", True), ("undelivered", False)]


async def test_vllm_54947_closing_the_stream_cancels_the_generation(make_lab):
    lab = make_lab(lambda _: Say("abc", hold=True), patience=HASTY)
    async with sdk(lab) as client:
        stream = await client.chat.completions.create(**chat_body(), stream=True)
        assert await anext(stream)
        await stream.close()
        await lab.until(lambda: lab.policy.cancelled == 1)
    await lab.until(lambda: lab.gateway.admission.in_flight == 0)
    [call] = await lab.settled()
    assert (call.kind, call.delivered, call.finish_reason) == ("undelivered", False, "abort")
    assert call.sampled_ids.tolist() == ids_of("abc")
    assert await trained(lab) == []


async def test_litellm_13485_any_model_is_there(lab):
    """Clients that look a model up by a name that the policy does not have."""
    async with sdk(lab) as client:
        assert (await client.models.retrieve("x")).id == "x"
        answer = await client.chat.completions.create(**chat_body() | {"model": "no-such-model"})
    assert answer.model == "no-such-model"
    assert [call.model for call in await lab.settled()] == ["no-such-model"]


async def test_rllm_774_two_agents_by_turns_are_two_samples(make_lab):
    said = iter(["a-one", "b-one", "a-two", "b-two"])
    lab = make_lab(lambda _: next(said))
    histories = {name: [{"role": "system", "content": name}, {"role": "user", "content": "go"}] for name in "AB"}
    async with lab.client() as client:
        for _ in range(2):
            for history in histories.values():
                answer = await client.post("/chat/completions", json={"model": "m", "messages": history})
                history += [answer.json()["choices"][0]["message"], {"role": "user", "content": "more"}]
    assert await trained(lab) == [[*ids_of("a-one"), *ids_of("a-two")], [*ids_of("b-one"), *ids_of("b-two")]]


async def test_deepagent_8_a_history_that_is_summarised_trains_each_token_once(make_lab):
    said = iter(["one", "two", "SUMMARY", "three", "four"])
    lab = make_lab(lambda _: next(said))
    system = {"role": "system", "content": "S"}

    async def ask(history: list[dict[str, Any]], text: str) -> None:
        history.append({"role": "user", "content": text})
        answer = await client.post("/chat/completions", json={"model": "m", "messages": history})
        history.append(answer.json()["choices"][0]["message"])

    async with lab.client() as client:
        long = [system]
        for text in ("task", "go on", "Summarise this conversation so far."):
            await ask(long, text)
        short = [system, {"role": "user", "content": "So far: " + long[-1]["content"]}]
        for text in ("go on", "and on"):
            await ask(short, text)
    rows = await trained(lab)
    everything = sorted(token for row in rows for token in row)
    assert everything == sorted(token for text in ("one", "two", "SUMMARY", "three", "four") for token in ids_of(text))
    assert len(rows) == 2
    assert [call.kind for call in await lab.settled()] == ["main", "main", "compaction", "main", "main"]


async def test_verl_2812_the_synchronous_interface_works_inside_a_running_loop(lab):
    with openai.OpenAI(base_url=lab.access.url + "/v1", api_key=lab.access.key) as client:
        for text in ("one", "two"):
            assert client.chat.completions.create(**chat_body(text)).choices[0].message.content == text
    assert isinstance(lab.gateway.pause(), PauseReport)
    assert lab.gateway.admission.paused
    lab.gateway.resume()
    lab.gateway.close_rollout(lab.open("r-2") and "r-2")


def test_verl_2812_two_loops_at_once_share_one_gateway(make_lab):
    lab = make_lab()
    answered: list[str] = []

    def own_loop(name: str) -> None:
        async def talk() -> None:
            async with sdk(lab) as client:
                answers = await asyncio.gather(
                    *(client.chat.completions.create(**chat_body(f"{name}{i}")) for i in range(8))
                )
            answered.extend(answer.choices[0].message.content for answer in answers)

        asyncio.run(talk())

    loops = [threading.Thread(target=own_loop, args=(name,)) for name in "ab"]
    for loop in loops:
        loop.start()
    with lab.gateway.paused(deadline_s=10):
        pass
    for loop in loops:
        loop.join(30)
    assert sorted(answered) == sorted(f"{name}{i}" for name in "ab" for i in range(8))
    assert len(lab.calls()) == 16


# -- pause, publish, versions ------------------------------------------------------------------------------------------


async def test_verl_7511_requests_in_the_instant_of_the_pause_are_in_flight_or_held(make_lab):
    """Requests keep coming while the gate closes; none slips in after it was closed."""
    lab = make_lab(lambda _: Say("ok", hold=True))
    async with lab.client(limits=httpx.Limits(max_connections=100)) as client:

        def ask(count: int) -> list[asyncio.Task[httpx.Response]]:
            bodies = [chat_body(f"{len(calls)} {at}") for at in range(count)]
            return [asyncio.create_task(client.post("/chat/completions", json=body)) for body in bodies]

        calls: list[asyncio.Task[httpx.Response]] = []
        calls += ask(30)
        await lab.until(lambda: lab.gateway.admission.in_flight > 3)
        pause = asyncio.create_task(asyncio.to_thread(lab.gateway.pause, deadline_s=30))
        await lab.until(lambda: lab.gateway.admission.paused)
        at_close = lab.gateway.admission.in_flight
        calls += ask(30)
        await lab.until(lambda: lab.gateway.admission.held == len(calls) - at_close)
        assert lab.gateway.admission.in_flight == at_close == len(lab.policy.sampled)
        lab.policy.release()
        report = await pause
        assert (report.in_flight, report.aborted, report.left) == (at_close, 0, 0)
        assert len(lab.policy.sampled) == at_close
        lab.gateway.resume()
        assert [(await call).status_code for call in calls] == [200] * 60
    assert len(lab.calls()) == 60


async def test_prime_rl_2325_an_upstream_that_never_answers_does_not_stop_the_update(make_lab):
    lab = make_lab(lambda _: Say("abc", hold=True))
    call = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.in_flight == 1)

    def update() -> PauseReport:
        with lab.gateway.paused(deadline_s=0.05) as report:
            lab.policy.version += 1
            return report

    report = await asyncio.to_thread(update)
    assert (report.in_flight, report.aborted, report.left) == (1, 1, 0)
    answer = await call
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "aborted_by_pause")
    assert not lab.gateway.admission.paused
    lab.policy.release()
    assert (await lab.chat("again")).status_code == 200
    assert set(lab.calls()[-1].versions.tolist()) == {1}


async def test_prime_rl_2329_a_call_that_spans_versions_keeps_both(make_lab):
    def piece(text: bytes, version: int, finish: str | None = None) -> Chunk:
        ids = np.frombuffer(text, np.uint8).astype(np.int32)
        logprobs, versions = np.full(len(ids), -1, np.float32), np.full(len(ids), version, np.int32)
        return Chunk(ids=ids, logprobs=logprobs, versions=versions, finish_reason=finish)

    lab = make_lab(lambda _: Say(chunks=[piece(b"ab", 3), piece(b"cde", 4, "stop")]))
    assert (await lab.chat()).json()["choices"][0]["message"]["content"] == "abcde"
    [call] = await lab.settled()
    assert call.versions.tolist() == [3, 3, 4, 4, 4]
    [sample] = build_samples([call]).samples
    assert sample.versions[sample.mask].tolist() == [3, 3, 4, 4, 4]


async def test_rl_4018_the_same_prompt_before_and_after_a_publish_is_two_calls_of_two_versions(lab):
    for version in (0, 1):
        lab.policy.version = version
        with lab.gateway.paused():
            pass
        assert (await lab.chat("same")).status_code == 200
    assert len(lab.policy.sampled) == 2
    assert [set(call.versions.tolist()) for call in await lab.settled()] == [{0}, {1}]


async def test_skyrl_537_an_update_that_raises_leaves_the_gateway_open(lab):
    with pytest.raises(ZeroDivisionError), lab.gateway.paused():
        held = asyncio.create_task(lab.chat())
        await lab.until(lambda: lab.gateway.admission.held == 1)
        _ = 1 / 0
    assert (await held).status_code == 200
    assert not lab.gateway.admission.paused
