"""A chat-level endpoint behind the gateway: every protocol in front, exact ids where the server tells them."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from gateway_lab import Lab
from gateway_upstream import (
    ASKED,
    HELLO,
    KEY,
    RAW_HELLO,
    chunk,
    compressed,
    events,
    opening,
    post,
    refusal,
    status,
    tool_delta,
    usage,
)

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai import OpenAIPolicy
from lightning_lab.records import Sampling
from lightning_lab.samples import build_samples


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("protocol", ASKED)
async def test_every_protocol_works_in_front_of_it(front, upstream, protocol, stream):
    raw = protocol == "completions"
    upstream.say(events(*(RAW_HELLO if raw else HELLO)))
    path, body = ASKED[protocol]
    response = await post(front, path, {**body, "stream": stream})
    assert response.status_code == 200, response.text
    said = response.text if stream else json.dumps(response.json())
    assert "Hello" in said or ("Hel" in said and "lo" in said)
    [call] = await front.settled()
    assert call.protocol == protocol
    assert call.delivered
    assert call.prompt_ids.tolist() == [1, 2, 3]
    assert call.sampled_ids.tolist() == ([10, 11, 12] if raw else [10, 11, 12, 13])
    np.testing.assert_allclose(call.logprobs, [-0.1, -0.2, -0.3] + ([] if raw else [-0.4]))
    assert call.versions.tolist() == [0] * len(call.sampled_ids)
    assert call.reply.content == "Hello"
    assert "endpoint_left_out" not in call.request_extra
    [asked] = upstream.bodies
    assert upstream.paths == ["/v1/completions" if raw else "/v1/chat/completions"]
    assert asked["model"] == "m"
    assert asked["stream"] is asked["return_token_ids"] is True
    assert asked["logprobs"]
    assert upstream.keys == [f"Bearer {KEY}"]


async def test_the_answer_counts_the_prompt_as_the_server_does(front, upstream):
    response = await post(front, *ASKED["chat"])
    assert response.json()["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


async def test_the_run_decides_how_to_sample(make_front, upstream):
    front = make_front(sampling=Sampling(temperature=0.5, top_p=0.9, top_k=7, max_tokens=100, seed=3, stop=("END",)))
    await front.chat("hello", temperature=2, max_tokens=20, stop=["ALSO"])
    [asked] = upstream.bodies
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 20, "seed": 3, "stop": ["END", "ALSO"]}
    assert {name: asked[name] for name in wanted} == wanted
    [call] = front.calls()
    assert call.used.max_tokens == 20
    assert call.asked["temperature"] == 2


async def test_what_a_client_wants_to_know_of_tokens_is_what_the_server_said(front):
    response = await front.chat("hello", logprobs=True)
    told = response.json()["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in told] == ["t0", "t0", "t1", "t0"]
    assert told[1]["logprob"] == pytest.approx(-0.2)


async def test_several_choices_are_several_requests(front, upstream):
    response = await front.chat("hello", n=3)
    assert len(response.json()["choices"]) == 3
    assert len(upstream.bodies) == 3
    assert len({call.request_id for call in front.calls()}) == 1


async def test_tools_and_reasoning_over_two_turns_are_one_sample(front, upstream):
    tools = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}]
    upstream.say(
        events(
            opening([1, 2]),
            chunk(None, [5], [-1.0], reasoning_content="Let me "),
            chunk(None, [6], [-1.0], reasoning_content="see."),
            chunk(None, [7], [-1.0], tool_calls=tool_delta("calc", "")),
            chunk(None, [8, 9], [-1.0, -1.0], tool_calls=tool_delta(None, '{"x": 1}'), finish="tool_calls"),
            usage(2, 5),
        ),
        events(opening([1, 2, 5, 6, 7, 8, 9, 20]), chunk("4", [30], [-2.0], finish="stop"), usage(8, 1)),
    )
    first = await front.chat("2+2", tools=tools)
    message = first.json()["choices"][0]["message"]
    assert first.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert message["reasoning_content"] == "Let me see."
    [said] = message["tool_calls"]
    assert said["function"] == {"name": "calc", "arguments": '{"x": 1}'}
    turn = {"role": "tool", "tool_call_id": said["id"], "content": "4"}
    await post(
        front,
        "/chat/completions",
        {"model": "any", "messages": [{"role": "user", "content": "2+2"}, message, turn], "tools": tools},
    )
    asked = upstream.bodies[1]
    assert asked["tools"] == upstream.bodies[0]["tools"]
    assert asked["messages"][1]["reasoning_content"] == "Let me see."
    assert asked["messages"][1]["tool_calls"][0]["id"] == asked["messages"][2]["tool_call_id"]
    calls = front.calls()
    assert calls[1].parent_id == calls[0].id
    [sample] = build_samples(calls).samples
    assert sample.ids.tolist() == [1, 2, 5, 6, 7, 8, 9, 20, 30]
    assert sample.mask.tolist() == [False, False, True, True, True, True, True, False, True]


async def test_reasoning_is_not_sent_to_a_server_that_never_told_any(front, upstream):
    await post(
        front,
        "/chat/completions",
        {
            "model": "any",
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "reasoning_content": "hm"},
                {"role": "user", "content": "c"},
            ],
        },
    )
    assert upstream.bodies[0]["messages"][1] == {"role": "assistant", "content": "b"}


# -- what a server does not tell --------------------------------------------------------------------------------------


async def masks(front: Lab) -> tuple[int, dict[str, int], list[str]]:
    """Tokens that train, tokens that do not by reason, and what is noted in the record."""
    response = await front.chat()
    assert response.status_code == 200, response.text
    calls = await front.settled()
    built = build_samples(calls)
    trained = sum(int(sample.mask.sum()) for sample in built.samples)
    masked: dict[str, int] = {}
    for sample in built.samples:
        masked.update(sample.masked)
    return trained, masked, calls[-1].request_extra.get("endpoint_left_out", [])


async def test_a_server_without_ids_is_recorded_and_never_trains(front, upstream):
    upstream.say(events(opening(None), chunk("Hel"), chunk("lo", finish="stop"), usage(3, 4)))
    trained, masked, left_out = await masks(front)
    assert (trained, masked) == (0, {"missing_ids": 4})
    assert left_out == ["prompt_ids", "sampled_ids", "logprobs"]
    [call] = front.calls()
    assert call.prompt_ids.tolist() == [-1] * 3
    assert call.reply.content == "Hello"


async def test_a_server_that_tells_nothing_but_text(front, upstream):
    upstream.say(events(chunk("Hello", finish="stop")))
    assert (await masks(front))[:2] == (0, {"missing_ids": 1})


@pytest.mark.parametrize("count", [10**15, -1, True, "4", None])
async def test_a_count_that_is_none_is_not_believed(front, upstream, count):
    upstream.say(events(opening([1]), chunk("Hello", [10, 11], [-1.0, -1.0], finish="stop"), usage(count, count)))
    assert await masks(front) == (2, {}, [])


async def test_without_the_prompts_ids_nothing_trains(front, upstream):
    upstream.say(events(chunk("Hello", [10, 11], [-1.0, -1.0], finish="stop"), usage(3, 2)))
    assert await masks(front) == (0, {"missing_ids": 2}, ["prompt_ids"])


async def test_null_logprobs_mask_their_own_tokens(front, upstream):
    upstream.say(
        events(opening([1]), chunk("a", [10, 11], [-1.0, None]), chunk("b", [12], None), chunk("", [13], [-9999.0]),
               chunk("c", [14], [-1.0], finish="stop"), usage(1, 5))
    )  # fmt: skip
    assert await masks(front) == (2, {"no_logprob": 3}, ["logprobs"])


@pytest.mark.parametrize("odd", [[], "none", {"content": [{"logprob": "-1"}]}, {"content": "none"}])
async def test_logprobs_of_odd_types_are_as_good_as_none(front, upstream, odd):
    middle = chunk("b", [11], finish="stop")
    middle["choices"][0]["logprobs"] = odd
    upstream.say(events(opening([1]), chunk("a", [10], [-1.0]), middle, usage(1, 2)))
    assert await masks(front) == (1, {"no_logprob": 1}, ["logprobs"])


async def test_fewer_logprobs_than_ids_mask_the_call(front, upstream):
    upstream.say(events(opening([1]), chunk("a", [10, 11, 12], [-1.0, -1.0], finish="stop"), usage(1, 3)))
    assert await masks(front) == (0, {"unaligned": 3}, ["logprobs"])


async def test_logprobs_that_only_add_up_mask_the_call(front, upstream):
    upstream.say(
        events(opening([1]), chunk("a", [10, 11], [-1.0]), chunk("b", [12], [-1.0, -1.0], finish="stop"), usage(1, 3))
    )
    assert await masks(front) == (0, {"unaligned": 3}, ["logprobs"])


async def test_a_null_id_ends_what_trains(front, upstream):
    upstream.say(events(opening([1]), chunk("a", [10, None, 12], [-1.0] * 3, finish="stop"), usage(1, 3)))
    trained, masked, left_out = await masks(front)
    assert (trained, masked, left_out) == (1, {"missing_ids": 2}, ["sampled_ids"])


async def test_ids_that_a_tool_parser_swallowed_leave_nothing_to_train(front, upstream):
    """vLLM up to 0.11 left out the ids of chunks in which its parser had nothing to say; usage counts them."""
    upstream.say(
        events(
            opening([1]), chunk(None, [12], [-1.0], tool_calls=tool_delta("f", "{}"), finish="tool_calls"), usage(1, 4)
        )
    )
    trained, masked, left_out = await masks(front)
    assert (trained, masked) == (0, {"missing_ids": 4})
    assert "sampled_ids" in left_out
    assert front.calls()[0].sampled_ids.tolist() == [-1, -1, -1, 12]


async def test_text_without_ids_in_the_middle_leaves_nothing_to_train(front, upstream):
    upstream.say(events(opening([1]), chunk("a", [10], [-1.0]), chunk("b"), chunk("c", [12], [-1.0], finish="stop")))
    assert (await masks(front))[:2] == (0, {"missing_ids": 3})


async def test_a_server_that_does_not_stream(front, upstream):
    whole = {
        "prompt_token_ids": [1, 2],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello"},
                "token_ids": [10, 11],
                "logprobs": {"content": [{"token": "He", "logprob": -1.0}, {"token": "llo", "logprob": -1.0}]},
                "finish_reason": "length",
            }
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2},
    }
    upstream.say(status(200, whole))
    assert await masks(front) == (2, {}, [])
    assert front.calls()[0].finish_reason == "length"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_an_answer_that_comes_compressed_unasked_is_read(front, upstream, encoding):
    upstream.say(compressed(*HELLO, encoding=encoding, pieces=7))
    assert (await front.chat()).json()["choices"][0]["message"]["content"] == "Hello"
    [call] = front.calls()
    assert (call.prompt_ids.tolist(), call.sampled_ids.tolist()) == ([1, 2, 3], [10, 11, 12, 13])
    assert call.logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])


async def test_a_line_as_long_as_a_long_prompt(front, upstream):
    prompt = list(range(200_000))
    upstream.say(events(opening(prompt), chunk("x", [5], [-1.0], finish="stop"), usage(len(prompt), 1)))
    assert await masks(front) == (1, {}, [])
    assert front.calls()[0].prompt_ids.tolist() == prompt


@pytest.mark.parametrize("field", ["return_token_ids", "logprobs", "stream_options"])
async def test_a_field_that_the_server_refuses_is_left_out_for_good(front, upstream, field):
    upstream.say(refusal(400, f"Unrecognized request argument supplied: {field}"), events(*HELLO))
    assert (await front.chat()).status_code == 200
    assert (await front.chat("again")).status_code == 200
    assert [field in body for body in upstream.bodies] == [True, False, False]
    assert len(front.calls()) == 2


async def test_a_server_that_names_its_limit_otherwise(front, upstream):
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    upstream.say(refusal(400, words, code="unsupported_parameter"), events(*HELLO))
    for text in ("one", "two"):
        assert (await front.chat(text, max_tokens=9)).status_code == 200
    assert [body.get("max_completion_tokens") for body in upstream.bodies] == [None, 9, 9]


# -- the policy by itself ---------------------------------------------------------------------------------------------


async def test_it_starts_where_its_server_answers(upstream):
    upstream.models = [{"id": "m", "max_model_len": 4096}, {"id": "other", "max_model_len": 9}]
    policy = OpenAIPolicy(upstream.url, "m", api_key=KEY)
    await started(policy)
    assert policy.context_length == 4096
    assert not policy.can_learn
    assert KEY not in str(policy.fingerprint())
    policy.close()
    policy.close()


async def test_a_wrong_key_is_told_at_the_start(upstream):
    upstream.models_status = 401
    with pytest.raises(PolicyError, match="api_key"):
        await started(OpenAIPolicy(upstream.url, "m", api_key=KEY))


async def test_a_server_without_a_list_of_models_is_fine(upstream):
    upstream.models_status = 404
    await started(OpenAIPolicy(upstream.url, "m", api_key=""))


async def started(policy: OpenAIPolicy) -> None:
    """`start` blocks, and the upstream lives in this loop."""
    await asyncio.to_thread(policy.start)


def test_nobody_there_is_told_at_the_start():
    with pytest.raises(PolicyError, match="Is it running"):
        OpenAIPolicy("http://127.0.0.1:9/v1", "m").start()


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://x/v1", "http://u:p@host/v1", "http://host/v1?a=b", ""])
def test_an_unusable_address_is_told_at_once(url):
    with pytest.raises(PolicyError, match="base_url"):
        OpenAIPolicy(url, "m")


def test_it_renders_and_learns_nothing():
    policy = OpenAIPolicy("http://127.0.0.1:9/v1", "m")
    for step in (lambda: policy.render([], []), lambda: policy.parse(np.array([1])), lambda: policy.generate(
        np.array([1]), Sampling(), rollout_id="r")):  # fmt: skip
        with pytest.raises(PolicyError, match="chat-level"):
            step()


async def test_a_closed_policy_answers_no_more(front, upstream):
    assert (await front.chat()).status_code == 200
    front.policy.close()
    response = await front.chat("again")
    assert response.status_code == 500
    assert "closed" in response.text
