"""Anthropic Messages on the wire: blocks, events, errors, echoes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from gateway_lab import HASTY, Lab, Say, tool_call

from lightning_lab.policy.base import ContextOverflowError, PolicyError
from lightning_lab.records import Message

CALC = {"name": "calc", "description": "d", "input_schema": {"type": "object"}}
THINK_AND_CALL = "<think>why</think>I will." + tool_call("calc", {"e": "6*7"}) + tool_call("calc", {"e": "7*8"})
THINKING = {"type": "adaptive"}


def body(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 4000, "messages": [{"role": "user", "content": text}], **more}


def client(lab: Lab, **headers: str) -> httpx.AsyncClient:
    headers = headers or {"x-api-key": lab.access.key}
    return httpx.AsyncClient(
        base_url=lab.access.url, headers={"anthropic-version": "2023-06-01", **headers}, timeout=30
    )


async def post(lab: Lab, payload: Any, path: str = "/v1/messages") -> httpx.Response:
    async with client(lab) as http:
        return await http.post(path, json=payload)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """Decoded events; each names itself twice, and both names agree."""
    found = []
    for event in answer.text.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def test_text_in_text_out(lab):
    answer = (await post(lab, body("héllo", system="be brief", temperature=0, top_k=5))).json()
    assert answer["type"] == "message"
    assert answer["role"] == "assistant"
    assert answer["content"] == [{"type": "text", "text": "héllo"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    [call] = lab.calls()
    assert call.protocol == "messages"
    assert call.messages == (Message(role="system", content="be brief"), Message(role="user", content="héllo"))
    assert call.asked == {"temperature": 0, "top_k": 5, "max_tokens": 4000}
    assert answer["usage"]["input_tokens"] == len(call.prompt_ids)
    assert answer["usage"]["output_tokens"] == len(call.sampled_ids)
    assert call.request_id == answer["id"]
    assert answer["id"].startswith("msg_")


@pytest.mark.parametrize("header", ["x-api-key", "authorization"])
async def test_either_header_carries_the_key(lab, header):
    value = lab.access.key if header == "x-api-key" else f"Bearer {lab.access.key}"
    async with client(lab, **{header: value}) as http:
        assert (await http.post("/v1/messages?beta=true", json=body())).status_code == 200


async def test_a_probe_is_answered_without_a_key(lab):
    async with httpx.AsyncClient(base_url=lab.access.url) as http:
        assert (await http.head("/api/hello")).status_code == 200


async def test_thinking_and_tools_come_back_as_they_were_said(make_lab):
    lab = make_lab(lambda prompt: "done" if "[tool]" in prompt else THINK_AND_CALL)
    first = (await post(lab, body("q", tools=[CALC], thinking=THINKING))).json()
    assert [block["type"] for block in first["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert first["stop_reason"] == "tool_use"
    uses = first["content"][2:]
    assert [use["input"] for use in uses] == [{"e": "6*7"}, {"e": "7*8"}]
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "42"} for use in uses]
    again = body("q", tools=[CALC], thinking=THINKING)
    again["messages"][0]["content"] = [{"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}]
    again["messages"] += [
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]},
    ]
    second = (await post(lab, again)).json()
    assert second["content"] == [{"type": "text", "text": "done"}]
    one, two = lab.calls()
    assert two.messages == (
        Message(role="user", content="q"),
        one.reply,
        *(Message(role="tool", content="42", tool_call_id=use["id"]) for use in uses),
        Message(role="user", content="go on"),
    )
    assert two.parent_id == one.id
    assert first["content"][0]["signature"] in one.minted_ids
    assert all(use["id"].startswith("toolu_") and use["id"] in one.minted_ids for use in uses)
    assert one.tools == (
        {"type": "function", "function": {"name": "calc", "description": "d", "parameters": {"type": "object"}}},
    )


async def test_thinking_is_shown_only_to_those_who_ask(make_lab):
    lab = make_lab(lambda _: "<think>why</think>because")
    answer = (await post(lab, body())).json()
    assert [block["type"] for block in answer["content"]] == ["text"]
    assert lab.calls()[0].reply.reasoning == "why"


async def test_the_stream_is_the_standard_sequence(make_lab):
    lab = make_lab(lambda _: THINK_AND_CALL)
    answer = await post(lab, body("q", stream=True, tools=[CALC], thinking=THINKING))
    assert answer.headers["content-type"].startswith("text/event-stream")
    seen = events(answer)
    assert [event["type"] for event in seen] == [
        "message_start",
        "ping",
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        "message_delta",
        "message_stop",
    ]
    started = seen[0]["message"]
    assert started["content"] == []
    assert started["stop_reason"] is None
    blocks: dict[int, dict[str, Any]] = {}
    texts: dict[int, str] = {}
    for event in seen:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = event["content_block"]
            texts[event["index"]] = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            kind = delta["type"]
            if kind == "signature_delta":
                blocks[event["index"]]["signature"] = delta["signature"]
            else:
                part = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "partial_json"}[kind]
                texts[event["index"]] += delta[part]
    assert texts[0] == "why"
    assert texts[1] == "I will."
    assert [json.loads(texts[at]) for at in (2, 3)] == [{"e": "6*7"}, {"e": "7*8"}]
    [call] = lab.calls()
    assert blocks[0]["signature"] in call.minted_ids
    assert seen[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert seen[-2]["usage"]["output_tokens"] == len(call.sampled_ids)


async def test_pings_keep_a_held_stream_alive(make_lab):
    lab = make_lab(lambda _: Say("ok", hold=True), patience=HASTY)
    seen = []
    async with client(lab) as http, http.stream("POST", "/v1/messages", json=body(stream=True)) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                seen.append(line.removeprefix("event: "))
            if seen.count("ping") == 3:
                lab.policy.release()
    assert seen[:4] == ["message_start", "ping", "ping", "ping"]
    assert seen[-1] == "message_stop"


async def test_a_fault_after_early_headers_is_an_error_event(make_lab):
    lab = make_lab(lambda _: Say("ok", hold=True, error=PolicyError("broken")), patience=HASTY)
    async with client(lab) as http, http.stream("POST", "/v1/messages", json=body(stream=True)) as answer:
        assert answer.status_code == 200
        lab.policy.release()
        text = "".join([part async for part in answer.aiter_text()])
    last = json.loads(text.strip().rpartition("data: ")[2])
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"


async def test_how_a_reply_ended(make_lab):
    lab = make_lab(lambda _: "one two STOP")
    stopped = (await post(lab, body(stop_sequences=["STOP"]))).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "STOP")
    assert stopped["content"] == [{"type": "text", "text": "one two "}]
    cut = (await post(lab, body(max_tokens=3))).json()
    assert cut["stop_reason"] == "max_tokens"


async def test_system_messages_stay_where_they_are(lab):
    payload = body("q", system=[{"type": "text", "text": "top"}, {"type": "text", "text": "too"}])
    payload["messages"] += [{"role": "system", "content": "inside"}, {"role": "user", "content": "go"}]
    assert (await post(lab, payload)).status_code == 200
    assert [(message.role, message.content) for message in lab.calls()[0].messages] == [
        ("system", "top\ntoo"),
        ("user", "q"),
        ("system", "inside"),
        ("user", "go"),
    ]


async def test_tokens_are_counted_and_nothing_is_recorded(lab):
    payload = body("count me", system="s", tools=[CALC])
    counted = (await post(lab, payload, "/v1/messages/count_tokens")).json()
    assert lab.calls() == []
    assert (await post(lab, payload)).status_code == 200
    assert counted == {"input_tokens": len(lab.calls()[0].prompt_ids)}


async def test_what_the_policy_cannot_serve_is_left_out_and_recorded(lab):
    search = {"type": "web_search_20250305", "name": "web_search"}
    payload = body(tools=[CALC, search], metadata={"user_id": "u"}, context_management={"edits": []})
    assert (await post(lab, payload)).status_code == 200
    [call] = lab.calls()
    assert [tool["function"]["name"] for tool in call.tools] == ["calc"]
    assert call.request_extra["tools_left_out"] == [search]
    assert call.request_extra["metadata"] == {"user_id": "u"}
    assert call.request_extra["context_management"] == {"edits": []}


@pytest.mark.parametrize(
    "payload",
    [
        {},
        body() | {"messages": []},
        body() | {"messages": "hi"},
        body() | {"messages": [3]},
        body() | {"messages": [{"role": "robot", "content": "x"}]},
        body() | {"messages": [{"role": "user", "content": 3}]},
        body() | {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        body() | {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": 3}]}]},
        body() | {"max_tokens": "many"},
        body() | {"system": 3},
        body() | {"tools": [{"name": ""}]},
        body() | {"stop_sequences": 3},
        [],
    ],
)
async def test_wrong_shapes_get_anthropics_error(lab, payload):
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = await post(lab, payload, path)
        assert answer.status_code == 400
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_every_other_fault_has_the_shape_too(make_lab):
    lab = make_lab(lambda _: Say(error=ContextOverflowError("the prompt has 9 tokens"), pieces=0))
    overflow = await post(lab, body())
    assert overflow.status_code == 400
    assert overflow.json()["error"]["message"].startswith("prompt is too long")
    async with client(lab, **{"x-api-key": "wrong"}) as http:
        refused = await http.post("/v1/messages", json=body())
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert (await http.get("/v1/messages")).json()["type"] == "error"
        unknown = await http.post("/v1/nothing", json=body())
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")


async def test_models_in_anthropics_shape(lab):
    async with client(lab) as http:
        listed = (await http.get("/v1/models")).json()
        one = (await http.get("/v1/models/claude-x")).json()
    assert listed["data"][0]["id"] == listed["first_id"] == "scripted"
    assert (one["type"], one["id"]) == ("model", "claude-x")


WRONG = ["x", 7, 1.5, True, [], {}, [[]], [7], [{}], [None], None, 10**30]
FIELDS = [
    "model", "messages", "system", "tools", "stream", "stop_sequences", "max_tokens", "temperature", "top_p", "top_k",
    "thinking", "metadata", "tool_choice", "output_config", "context_management",
]  # fmt: skip
BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "t"},
    {"type": "thinking", "thinking": "t", "signature": "s"},
    {"type": "redacted_thinking", "data": "d"},
    {"type": "tool_use", "id": "i", "name": "n", "input": {}},
    {"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "t"}]},
    {"type": "search_result", "source": "s", "title": "t"},
]


async def sane(http: httpx.AsyncClient, payload: Any) -> None:
    """Answered, or refused in Anthropic's shape; never a fault of ours."""
    answer = await http.post("/v1/messages", content=json.dumps(payload).encode())
    assert answer.status_code in (200, 400), (payload, answer.text)
    if answer.status_code == 400:
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_any_type_in_any_field_is_answered_or_refused(lab):
    async with client(lab) as http:
        for field in FIELDS:
            for value in WRONG:
                await sane(http, body() | {field: value})


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["type"])
async def test_any_type_in_any_block_is_answered_or_refused(make_lab, block):
    lab = make_lab(lambda _: "ok")
    async with client(lab) as http:
        for role in ("user", "assistant"):
            for key in block:
                for value in WRONG:
                    await sane(http, body() | {"messages": [{"role": role, "content": [{**block, key: value}]}]})
    assert all(call.protocol == "messages" for call in lab.calls())


async def test_arguments_that_json_numbers_cannot_hold_are_answered(make_lab):
    lab = make_lab(lambda _: tool_call("f", {"n": 10**30}))
    for stream in (False, True):
        answer = await post(lab, body(f"{stream}", tools=[CALC], stream=stream))
        assert answer.status_code == 200
        assert "tool_use" in answer.text
