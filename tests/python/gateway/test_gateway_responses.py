"""Responses with the `openai` client: whole, streamed, echoed."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from gateway_lab import HASTY, Say, tool_call
from openai.types.responses import Response

from lightning_lab.records import Message

CALC = {"type": "function", "name": "calc", "description": "d", "parameters": {"type": "object"}, "strict": True}
THINK_AND_CALL = "<think>why</think>I will." + tool_call("calc", {"e": "6*7"}) + tool_call("calc", {"e": "7*8"})


def sdk(lab: Any, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=lab.access.url + "/v1", api_key=lab.access.key, **options)


async def test_text_in_text_out(lab):
    async with sdk(lab) as client:
        answer = await client.responses.create(model="m", instructions="be brief", input="héllo", temperature=0)
    assert answer.output_text == "héllo"
    assert answer.status == "completed"
    assert answer.instructions == "be brief"
    [call] = lab.calls()
    assert call.delivered
    assert call.protocol == "responses"
    assert call.messages == (Message(role="system", content="be brief"), Message(role="user", content="héllo"))
    assert call.asked == {"temperature": 0}
    assert answer.usage.input_tokens == len(call.prompt_ids)
    assert answer.usage.output_tokens == len(call.sampled_ids)
    assert call.request_id == answer.id


async def test_what_a_reply_said_comes_back_as_one_message(make_lab):
    lab = make_lab(lambda prompt: "done" if "[tool]" in prompt else THINK_AND_CALL)
    async with sdk(lab) as client:
        first = await client.responses.create(
            model="m", input="q", tools=[CALC], include=["reasoning.encrypted_content"], store=False
        )
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
        history: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "q"}]}]
        history += [item.model_dump() for item in first.output]
        history += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "42"} for item in first.output[2:]
        ]
        second = await client.responses.create(model="m", input=history, tools=[CALC])
    assert second.output_text == "done"
    one, two = lab.calls()
    assert two.messages == (
        Message(role="user", content="q"),
        one.reply,
        *(Message(role="tool", content="42", tool_call_id=item.call_id) for item in first.output[2:]),
    )
    assert one.tools == (
        {"type": "function", "function": {"name": "calc", "description": "d", "parameters": {"type": "object"}}},
    )
    assert {item.call_id for item in first.output[2:]} < set(one.minted_ids)
    assert first.output[0].encrypted_content in one.minted_ids


@pytest.mark.parametrize("early", [False, True])
async def test_the_stream_has_the_standard_events(make_lab, early):
    lab = make_lab(lambda _: Say(THINK_AND_CALL, hold=early), **({"patience": HASTY} if early else {}))
    events = []
    async with sdk(lab) as client:
        async for event in await client.responses.create(model="m", input="q", stream=True, tools=[CALC]):
            if len(events) > 2:
                lab.policy.release()  # after a keep-alive, where there is one
            if not early:
                lab.policy.release()
            events.append(event)
    kinds = [event.type.removeprefix("response.") for event in events]
    beats = kinds.count("in_progress") - 1
    assert beats > 0 if early else beats == 0
    assert kinds[:2] == ["created", "in_progress"]
    assert [kind for kind in kinds[2:] if kind != "in_progress"] == [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1].response
    assert [event.item for event in events if event.type.endswith("item.done")] == final.output
    assert final.output[2].arguments == '{"e": "6*7"}'
    await lab.until(lambda: lab.calls()[0].delivered)


async def test_the_sdk_accumulates_the_stream(make_lab):
    lab = make_lab(lambda _: "word " * 1000)
    async with sdk(lab) as client, client.responses.stream(model="m", input="q") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "word " * 1000


async def test_a_reply_that_was_cut_is_incomplete(lab):
    async with sdk(lab) as client:
        answer = await client.responses.create(model="m", input="0123456789", max_output_tokens=3)
        kinds = [
            event.type
            async for event in await client.responses.create(
                model="m", input="0123456789", max_output_tokens=3, stream=True
            )
        ]
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output_text == "012"
    assert kinds[-1] == "response.incomplete"


async def test_an_empty_reply_is_an_empty_message(make_lab):
    lab = make_lab(lambda _: "")
    async with sdk(lab) as client:
        answer = await client.responses.create(model="m", input="q")
    assert answer.output[0].content[0].text == ""


async def test_hosted_tools_and_unknown_items_are_left_out_and_recorded(lab):
    search, namespace = {"type": "web_search"}, {"type": "namespace", "name": "n", "description": "d", "tools": [CALC]}
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    async with lab.client() as client:
        answer = await client.post(
            "/responses",
            json={
                "model": "m", "input": [{"role": "user", "content": "q"}, item], "tools": [search, CALC, namespace],
                "store": False, "mystery": 1,
            },
        )  # fmt: skip
    Response.model_validate(answer.json())
    [call] = lab.calls()
    assert [tool["function"]["name"] for tool in call.tools] == ["calc", "n__calc"]
    assert call.request_extra["tools_left_out"] == [search]
    assert call.request_extra["tools_flattened"] == [{"namespace": "n", "name": "calc", "shown": "n__calc"}]
    assert call.request_extra["input_left_out"] == [item]
    assert call.request_extra["mystery"] == 1


async def test_a_namespaced_function_is_called_and_echoed_under_its_own_name(make_lab):
    lab = make_lab(lambda prompt: "done" if "[tool]" in prompt else tool_call("n__calc", {}))
    tools = [CALC, {"type": "namespace", "name": "n", "description": "d", "tools": [CALC]}]
    async with lab.client() as client:
        said = [{"role": "user", "content": "q"}]
        answer = (await client.post("/responses", json={"model": "m", "input": said, "tools": tools})).json()
        [function] = answer["output"]
        assert (function["namespace"], function["name"]) == ("n", "calc")
        said += [function, {"type": "function_call_output", "call_id": function["call_id"], "output": "42"}]
        await client.post("/responses", json={"model": "m", "input": said, "tools": tools})
    one, two = lab.calls()
    assert two.messages[1] == one.reply


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
async def test_state_that_the_gateway_does_not_keep_is_refused(lab, field):
    async with sdk(lab) as client:
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.responses.create(model="m", input="q", **{field: "resp_1"})
    assert refusal.value.param == field
    assert refusal.value.code == "unsupported_parameter"
    assert "whole input" in str(refusal.value)


async def test_logprobs_are_included_when_asked(lab):
    async with sdk(lab) as client:
        answer = await client.responses.create(model="m", input="ab", include=["message.output_text.logprobs"])
    assert [token.token for token in answer.output[0].content[0].logprobs] == ["a", "b", "<end>"]
