"""Chat Completions with the `openai` client: replies, streams, records."""

from __future__ import annotations

from typing import Any

import numpy as np
import openai
import pytest
from gateway_lab import HASTY, Say, chat_body, tool_call

from lightning_lab.records import Message, Sampling

CALC = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "d",
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
    },
}


def sdk(lab: Any, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=lab.access.url + "/v1", api_key=lab.access.key, **options)


async def test_a_reply_is_answered_and_recorded_exactly(lab):
    async with sdk(lab) as client:
        answer = await client.chat.completions.create(
            model="gpt-any", messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "héllo"}],
            temperature=0.1, extra_body={"mystery": {"a": 1}},
        )  # fmt: skip
    assert answer.choices[0].message.content == "héllo"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "gpt-any"
    [call] = await lab.settled()
    assert call.delivered and call.kind == "main" and call.error == ""
    assert lab.policy.decode(call.prompt_ids) == "[system]s<end>[user]héllo<end>[assistant]"
    assert lab.policy.decode(call.sampled_ids) == "héllo<end>"
    assert np.array_equal(call.logprobs, np.full(7, -0.5, np.float32))
    assert answer.usage.completion_tokens == len(call.sampled_ids) == 7
    assert answer.usage.prompt_tokens == len(call.prompt_ids)
    assert call.messages == (Message(role="system", content="s"), Message(role="user", content="héllo"))
    assert call.reply == Message(role="assistant", content="héllo")
    assert (call.protocol, call.model, call.ordinal, call.attempt) == ("chat", "gpt-any", 0, 1)
    assert call.asked == {"temperature": 0.1}
    assert call.used.temperature == 1.0
    assert call.request_extra == {"mystery": {"a": 1}}
    assert call.minted_ids == (answer.id,)
    assert call.arrived_at <= call.started_at <= call.finished_at


async def test_tool_calls_get_minted_ids_and_are_read_back(make_lab):
    lab = make_lab(
        lambda prompt: "42" if "[tool]" in prompt else "<think>hm</think>I will. " + tool_call("calc", {"e": "6*7"})
    )
    async with sdk(lab) as client:
        first = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "6*7?"}], tools=[CALC]
        )
        message = first.choices[0].message
        history = [
            {"role": "user", "content": "6*7?"},
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": [{"type": "text", "text": "42"}]},
        ]
        last = await client.chat.completions.create(model="m", messages=history, tools=[CALC])
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.reasoning_content == "hm"
    assert last.choices[0].message.content == "42"
    one, two = lab.calls()
    assert one.reply.tool_calls[0] == {"id": message.tool_calls[0].id, "name": "calc", "arguments": '{"e": "6*7"}'}
    assert message.tool_calls[0].id in one.minted_ids
    assert two.messages[1] == one.reply
    assert two.messages[2] == Message(role="tool", content="42", tool_call_id=message.tool_calls[0].id)
    assert one.tools[0]["function"] == {k: v for k, v in CALC["function"].items() if k != "strict"}
    assert np.array_equal(two.prompt_ids[: len(one.prompt_ids)], one.prompt_ids)


@pytest.mark.parametrize("early", [False, True])
async def test_a_stream_says_the_same_as_a_whole_answer(make_lab, early):
    lab = make_lab(
        lambda _: Say("<think>why</think>" + "é" * 3000 + tool_call("calc", {"e": "1"}), hold=early),
        **({"patience": HASTY} if early else {}),
    )
    content, reasoning, arguments, ids, roles, finishes = "", "", "", set(), [], []
    async with sdk(lab) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "q"}], stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        async for chunk in stream:
            lab.policy.release()
            ids.add(chunk.id)
            usage = chunk.usage
            for choice in chunk.choices:
                roles += [choice.delta.role] if choice.delta.role else []
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                finishes += [choice.finish_reason] if choice.finish_reason else []
                for call in choice.delta.tool_calls or []:
                    arguments += call.function.arguments
    [call] = lab.calls()
    assert (content, reasoning, arguments) == ("é" * 3000, "why", '{"e": "1"}')
    assert (roles, finishes) == (["assistant"], ["tool_calls"])
    assert ids == {call.request_id}
    assert usage.completion_tokens == len(call.sampled_ids)
    await lab.until(lambda: lab.calls()[0].delivered)


async def test_n_replies_are_n_calls_of_one_request(make_lab):
    lab = make_lab(sampling=Sampling(seed=7))
    async with sdk(lab) as client:
        answer = await client.chat.completions.create(**chat_body("x"), n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    calls = await lab.settled()
    assert len({call.id for call in calls}) == 3
    assert {call.request_id for call in calls} == {answer.id}
    assert [call.ordinal for call in calls] == [0, 1, 2]
    assert [call.used.seed for call in calls] == [7, 8, 9]
    assert all(call.delivered for call in calls)


async def test_logprobs_of_every_sampled_token(lab):
    async with sdk(lab) as client:
        answer = await client.chat.completions.create(**chat_body("ab"), logprobs=True)
    tokens = answer.choices[0].logprobs.content
    assert [token.token for token in tokens] == ["a", "b", "<end>"]
    assert all(token.logprob == -0.5 for token in tokens)


async def test_a_missing_logprob_is_recorded_as_nan(make_lab):
    lab = make_lab(lambda _: Say("a", logprob=float("nan")))
    answer = await lab.chat(logprobs=True)
    assert answer.json()["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0
    assert np.isnan(lab.calls()[0].logprobs).all()


async def test_the_run_decides_how_to_sample_and_the_harness_when_to_stop(make_lab):
    lab = make_lab(sampling=Sampling(temperature=0.7, top_p=0.9, top_k=5, max_tokens=100, stop=("A",), seed=3))
    await lab.chat(temperature=2, top_p=0.1, seed=99, max_tokens=1000, stop=["B", "A"])
    await lab.chat(max_completion_tokens=4)
    first, second = lab.policy.sampled
    assert first == Sampling(temperature=0.7, top_p=0.9, top_k=5, max_tokens=100, stop=("A", "B"), seed=3)
    assert second == Sampling(temperature=0.7, top_p=0.9, top_k=5, max_tokens=4, stop=("A",), seed=4)
    recorded = lab.calls()
    assert recorded[0].asked == {"temperature": 2, "top_p": 0.1, "seed": 99, "max_tokens": 1000, "stop": ["B", "A"]}
    assert [call.used for call in recorded] == [first, second]
    assert recorded[1].finish_reason == "length"


async def test_a_rollout_may_have_its_own_sampling(lab):
    access = lab.open("r-2", sampling=Sampling(temperature=0.25))
    async with lab.client(access) as client:
        await client.post("/chat/completions", json=chat_body())
    assert lab.calls("r-2")[0].used.temperature == 0.25


async def test_max_tokens_never_exceeds_the_context(make_lab):
    lab = make_lab(policy={"context_length": 40})
    await lab.chat("0123456789", max_tokens=1000)
    [call] = lab.calls()
    assert call.used.max_tokens == 40 - len(call.prompt_ids)


async def test_content_forms_of_real_clients_are_equal(lab):
    for content in (
        "one\ntwo",
        [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "cache_control": {}}],
    ):
        assert (await lab.chat(content)).json()["choices"][0]["message"]["content"] == "one\ntwo"


async def test_legacy_functions_and_parsed_arguments(lab):
    body = {
        "model": "m",
        "functions": [{"name": "f", "parameters": {}}],
        "messages": [
            {"role": "developer", "content": "d"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": {"a": 1}}},
            {"role": "function", "name": "f", "content": "r"},
        ],
    }
    async with lab.client() as client:
        answer = await client.post("/chat/completions", json=body)
    assert answer.status_code == 200
    [call] = lab.calls()
    assert [message.role for message in call.messages] == ["system", "assistant", "tool"]
    assert call.messages[1].tool_calls == ({"id": "", "name": "f", "arguments": '{"a":1}'},)
    assert call.tools[0]["function"]["name"] == "f"


async def test_the_text_that_ended_a_reply_is_not_shown_but_its_ids_are_kept(make_lab):
    lab = make_lab(lambda _: "one STOP")
    answer = await lab.chat(stop=["STOP"])
    assert answer.json()["choices"][0]["message"]["content"] == "one "
    [call] = lab.calls()
    assert call.reply.content == "one "
    assert lab.policy.decode(call.sampled_ids) == "one STOP<end>"
