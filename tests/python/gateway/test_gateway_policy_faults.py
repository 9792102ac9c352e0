"""Policies that stall, break off, or give lists that do not fit: a protocol-shaped error or an honest record."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from gateway_lab import END, HASTY, Say, chat_body

from lightning_lab.policy.base import Chunk, ContextOverflowError, PolicyError
from lightning_lab.samples import build_samples

PATHS = ("/chat/completions", "/completions", "/responses", "/messages")
BODY = {**chat_body("x"), "input": "x", "prompt": "x", "max_tokens": 100}


def chunk(ids: list[int], logprobs: list[float], finish: str | None = None, versions: int | None = None) -> Chunk:
    return Chunk(
        ids=np.asarray(ids, np.int32),
        logprobs=np.asarray(logprobs, np.float32),
        versions=np.zeros(len(ids) if versions is None else versions, np.int32),
        finish_reason=finish,
    )


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error object, in the shape of the route's protocol."""
    body = answer.json()
    error: dict[str, Any] = body["error"]
    if answer.url.path.endswith("/messages"):
        assert (body["type"], set(error)) == ("error", {"type", "message"})
    else:
        assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (PolicyError("HTTP 429: too many requests"), 500),
        (PolicyError("HTTP 500: <html><script>alert(1)</script></html>"), 500),
        (ContextOverflowError("HTTP 400: the prompt has 9 tokens"), 400),
        (TimeoutError(), 500),
    ],
)
async def test_whatever_a_policy_raises_has_the_protocols_shape(make_lab, path, stream, error, status):
    lab = make_lab(lambda _: Say(error=error, pieces=0))
    async with lab.client() as client:
        answer = await client.post(path, json={**BODY, "stream": stream})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert str(error) in error_of(answer)["message"]
    [call] = await lab.settled()
    assert (call.kind, call.delivered, call.finish_reason) == ("undelivered", False, "abort")
    assert call.error


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "chunks",
    [
        [chunk([97, 98], [-1, -1])],
        [chunk([97, 98], [-1, -1]), chunk([], [])],
        [chunk([97, 98], [-1, -1], "abort")],
        [chunk([97, 98], [-1, -1], "nonsense")],
    ],
    ids=["ends", "ends_with_nothing", "abort", "unknown_reason"],
)
async def test_a_generation_that_breaks_off_is_an_error_and_keeps_what_was_sampled(make_lab, path, chunks):
    lab = make_lab(lambda _: Say(chunks=chunks))
    async with lab.client() as client:
        answer = await client.post(path, json=BODY)
    assert answer.status_code == 500
    assert "broke off" in error_of(answer)["message"]
    [call] = await lab.settled()
    assert call.sampled_ids.tolist() == [97, 98]
    assert (call.delivered, call.kind) == (False, "undelivered")
    assert build_samples([call]).samples == []
    assert lab.gateway.faults("r-1") == ["policy_error"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_without_ids_is_an_empty_reply_that_trains_nothing(make_lab, path, stream):
    lab = make_lab(lambda _: Say(chunks=[chunk([], [], "stop")]))
    async with lab.client() as client:
        answer = await client.post(path, json={**BODY, "stream": stream, "logprobs": None})
    assert answer.status_code == 200
    [call] = await lab.settled()
    assert (len(call.sampled_ids), call.delivered, call.reply.content) == (0, True, "")
    assert all(not sample.mask.any() for sample in build_samples([call]).samples)


UNPLACED = [
    [chunk([97, 98, END], [-1, -1], "stop")],
    [chunk([97, 98, END], [], "stop")],
    [chunk([97], [-1, -1]), chunk([98, END], [-1], "stop")],
    [chunk([97, 98, END], [-1] * 5, "stop")],
    [chunk([97, 98, END], [-1] * 3, "stop", versions=1)],
]


@pytest.mark.parametrize("chunks", UNPLACED, ids=["fewer", "none", "adds_up_by_chance", "more", "versions"])
@pytest.mark.parametrize("path", PATHS)
async def test_log_probs_that_nobody_can_place_mask_the_call(make_lab, path, chunks):
    """vllm#28256: fewer log-probs than ids, without positions."""
    lab = make_lab(lambda _: Say(chunks=chunks))
    asks = {"include": ["message.output_text.logprobs"]} if path == "/responses" else {}
    asks |= {"logprobs": {"/chat/completions": True, "/completions": 1}.get(path)}
    async with lab.client() as client:
        answer = await client.post(path, json={**BODY, **asks})
    assert answer.status_code == 200
    assert "ab" in answer.text
    [call] = await lab.settled()
    assert call.sampled_ids.tolist() == [97, 98, END]
    [sample] = build_samples([call]).samples
    assert not sample.mask.any()
    assert sample.masked == {"unaligned": 3}


async def test_null_log_probs_mask_their_own_tokens(make_lab):
    lab = make_lab(lambda _: Say(chunks=[chunk([97], [float("nan")]), chunk([98, END], [-1, float("-inf")], "stop")]))
    answer = await lab.chat(logprobs=True)
    shown = [token["logprob"] for token in answer.json()["choices"][0]["logprobs"]["content"]]
    assert shown == [-9999.0, -1.0, -9999.0]
    [sample] = build_samples(await lab.settled()).samples
    assert sample.ids[sample.mask].tolist() == [98]
    assert sample.masked == {"no_logprob": 2}


@pytest.mark.parametrize("path", PATHS)
async def test_a_policy_that_stalls_leaves_its_client_waiting_and_nothing_hung(make_lab, path):
    """The client gives up; the next request and a pause go on as if nothing had been."""
    stuck = [True]
    lab = make_lab(lambda _: Say("abc", hold=bool(stuck and stuck.pop())))
    async with lab.client() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(path, json=BODY, timeout=0.3)
    await lab.until(lambda: lab.policy.cancelled == 1)
    await lab.until(lambda: lab.gateway.admission.in_flight == 0)
    assert (await asyncio.to_thread(lab.gateway.pause, deadline_s=1)).aborted == 0
    lab.gateway.resume()
    async with lab.client() as client:
        assert (await client.post(path, json=BODY)).status_code == 200
    assert [(call.kind, call.delivered) for call in await lab.settled()] == [("undelivered", False), ("retry", True)]


@pytest.mark.parametrize("path", PATHS)
async def test_a_stall_that_outlives_its_rollout_ends_with_it(make_lab, path):
    lab = make_lab(lambda _: Say("abc", hold=True), patience=HASTY)
    async with lab.client() as client, client.stream("POST", path, json={**BODY, "stream": True}) as answer:
        await lab.until(lambda: lab.gateway.admission.in_flight == 1)
        await asyncio.to_thread(lab.gateway.close_rollout, "r-1")
        text = "".join([part async for part in answer.aiter_text()])
    assert "has ended" in text
    assert [call.delivered for call in await lab.settled()] == [False]
    assert lab.gateway.admission.in_flight == 0
