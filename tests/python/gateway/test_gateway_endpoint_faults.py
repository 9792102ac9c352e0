"""An endpoint that refuses, stalls, lies or breaks off: the agent gets an answer, the record stays honest."""

from __future__ import annotations

import json

import httpx
import pytest
from gateway_lab import chat_body
from gateway_upstream import (
    ASKED,
    HELLO,
    KEY,
    RAW_HELLO,
    chunk,
    compressed,
    events,
    nothing,
    opening,
    post,
    refusal,
    silence,
    status,
)

from lightning_lab.policy.openai.endpoint import Patience
from lightning_lab.samples import build_samples


def code_of(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


VLLM_TOO_LONG = (
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens in the messages, "
    "Please reduce the length of the messages."
)


@pytest.mark.parametrize(
    "answer",
    [
        refusal(400, VLLM_TOO_LONG, type="BadRequestError", code=400),
        refusal(400, "Your input exceeds the limit.", code="context_length_exceeded"),
        status(400, {"object": "error", "message": "The input (5000 tokens) is longer than the model's context"}),
        refusal(400, "the request exceeds the available context size", type="exceed_context_size_error"),
        status(413, {"detail": "prompt is too long: 5000 tokens > 4096"}),
        events({"error": {"message": VLLM_TOO_LONG, "code": 400}}),
    ],
)
async def test_too_long_a_prompt_is_context_overflow(front, upstream, answer):
    upstream.say(answer)
    response = await front.chat()
    assert response.status_code == 400
    assert code_of(response) == "context_length_exceeded"
    assert front.gateway.faults("r-1") == ["context_overflow"]
    assert len(upstream.bodies) == 1
    [call] = front.calls()
    assert call.kind == "undelivered"
    assert call.error


async def test_too_large_a_reply_limit_gives_way_to_the_context(front, upstream):
    words = "max_tokens is too large: 8192. This model's maximum context length is 4096 tokens and your request has 3"
    upstream.say(refusal(400, words), events(*HELLO))
    response = await front.chat(max_tokens=8192)
    assert response.status_code == 200
    assert ["max_tokens" in body for body in upstream.bodies] == [True, False]
    assert front.gateway.faults("r-1") == []


async def test_other_refusals_are_the_clients_and_not_repeated(front, upstream):
    upstream.say(refusal(400, "This endpoint takes no tools."))
    response = await front.chat()
    assert response.status_code == 400
    assert code_of(response) == "refused"
    assert "takes no tools" in response.text
    assert response.headers["x-should-retry"] == "false"
    assert front.gateway.faults("r-1") == []
    assert len(upstream.bodies) == 1


@pytest.mark.parametrize(
    "broken",
    [
        refusal(429, "slow down"),
        status(429, "", headers={"Retry-After": "0"}),
        refusal(500, "oops"),
        status(502, "<html>Bad gateway</html>", kind="text/html"),
        refusal(503, "loading"),
        nothing(),
        events(done=False),
    ],
    ids=["429", "429-retry-after", "500", "502-html", "503", "cut", "empty"],
)
async def test_what_may_pass_is_tried_again_before_the_first_byte(front, upstream, broken):
    upstream.say(broken, broken, events(*HELLO))
    response = await front.chat()
    assert response.status_code == 200, response.text
    assert len(upstream.bodies) == 3
    assert len(front.calls()) == 1


@pytest.mark.parametrize(
    ("answer", "tries", "words"),
    [
        (refusal(429, "slow down"), 3, "slow down"),
        (refusal(429, "pay first", code="insufficient_quota"), 1, "pay first"),
        (refusal(500, "oops"), 3, "oops"),
        (refusal(401, "bad key"), 1, "api_key"),
        (refusal(404, "The model `m` does not exist."), 1, "base_url"),
        (status(307, "", headers={"Location": "http://127.0.0.1:1/"}), 1, "Redirects"),
        (nothing(), 3, "does not answer"),
        (status(200, "<html>Welcome</html>", kind="text/html"), 1, "text/html"),
        (compressed(*HELLO, encoding="br"), 1, "'br'"),
        (events(*HELLO, headers={"Content-Encoding": "gzip"}), 3, "not compressed as it says"),
        (events("{not json"), 1, "JSON"),
        (events("[1]"), 1, "array"),
        (events({"choices": [7]}), 1, "no model's reply"),
        (events(chunk("x", ["a"], None)), 1, "token_ids"),  # type: ignore[list-item]
        (events(chunk(7, [1], None)), 1, "int"),  # type: ignore[arg-type]
        (events({"error": {"message": "engine died", "code": 500}}), 1, "engine died"),
        (events({"error": "engine died"}), 1, "engine died"),
        (events(opening([1]), chunk("x", [2], [-1.0], finish="abort")), 1, "broke the generation off"),
        (events(opening([1]), done=False), 1, "in the middle"),
    ],
)
async def test_a_fault_is_the_policys_and_says_what_happened(front, upstream, answer, tries, words):
    upstream.say(answer)
    response = await front.chat()
    assert response.status_code == 500
    assert code_of(response) == "policy_error"
    assert words in response.json()["error"]["message"]
    assert KEY not in response.text
    assert front.gateway.faults("r-1") == ["policy_error"]
    assert len(upstream.bodies) == tries
    [call] = front.calls()
    assert not call.delivered
    assert build_samples([call]).samples == []


@pytest.mark.parametrize("protocol", ASKED)
@pytest.mark.parametrize("then", ["break", "end"])
async def test_a_stream_that_ends_in_the_middle_is_kept_and_not_repeated(front, upstream, protocol, then):
    begun = RAW_HELLO[:1] if protocol == "completions" else HELLO[:2]
    upstream.say(events(*begun, done=False, then=then))
    path, body = ASKED[protocol]
    response = await post(front, path, {**body, "stream": True})
    assert response.status_code == 500
    assert "in the middle" in response.json()["error"]["message"]
    assert len(upstream.bodies) == 1
    [call] = front.calls()
    assert call.kind == "undelivered"
    assert call.reply.content == "Hel"
    assert call.prompt_ids.tolist() == [1, 2, 3]
    assert call.sampled_ids.tolist() == [10]
    assert front.gateway.faults("r-1") == ["policy_error"]


async def test_a_stall_in_the_middle_ends_the_call(make_front, upstream):
    front = make_front(Patience(silence_s=0.2, retries=1, pause_s=0.01))
    upstream.say(events(*HELLO[:2], then="stall"))
    response = await front.chat()
    assert response.status_code == 500
    assert "stalled" in response.text
    assert len(upstream.bodies) == 1
    assert front.calls()[0].sampled_ids.tolist() == [10]


async def test_silence_before_the_first_byte_is_tried_again(make_front, upstream):
    front = make_front(Patience(silence_s=0.2, retries=1, pause_s=0.01))
    upstream.say(silence(), events(*HELLO))
    assert (await front.chat()).status_code == 200
    assert len(upstream.bodies) == 2


async def test_a_client_that_goes_away_ends_the_generation(front, upstream):
    upstream.say(events(*HELLO[:2], then="stall"))
    with pytest.raises(httpx.ReadTimeout):
        async with front.client() as client:
            await client.post("/chat/completions", json=chat_body(), timeout=0.3)
    await upstream.gone.wait()
    await front.until(lambda: len(front.calls()) == 1)
    [call] = front.calls()
    assert call.kind == "undelivered"
    assert call.reply.content == "Hel"
    assert front.gateway.faults("r-1") == []


async def test_the_key_is_told_to_nobody(front, upstream):
    upstream.say(refusal(400, f"no such key: {KEY}"))
    response = await front.chat()
    assert KEY not in response.text
    assert "(key)" in response.text
    assert KEY not in json.dumps([str(call) for call in front.calls()])


async def test_counting_is_answered_though_nobody_can_count(front, upstream):
    for _ in range(2):
        response = await post(front, "/messages/count_tokens", ASKED["messages"][1])
        assert response.status_code == 404
    assert upstream.paths == ["/tokenize"], "it is asked once"
    assert response.json()["error"]["type"] == "not_found_error"
