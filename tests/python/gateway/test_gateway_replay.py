"""Requests that real harnesses sent, replayed: every one is answered and recorded."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import httpx
import pytest
from gateway_lab import chat_body, tool_call

CAPTURES = Path(__file__).parents[2] / "data" / "captures"
HOP_BY_HOP = {"host", "content-length", "connection", "authorization"}


def recorded(name: str) -> list[dict]:
    lines = (CAPTURES / f"{name}.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["ev"] == "request"]


async def replay(lab, name: str) -> list[httpx.Response]:
    """Every recorded request at its recorded path, with its own headers."""
    answers = []
    async with lab.client() as client:
        for request in recorded(name):
            headers = {key: value for key, value in request["headers"] if key.lower() not in HOP_BY_HOP}
            url = lab.access.url + request["path"].removeprefix("/rollout/r1")
            body = {"json": request["body"]} if request["body"] is not None else {}
            answers.append(
                await client.request(request["method"], url, params=request["query"], headers=headers, **body)
            )
    return answers


@pytest.mark.parametrize("name", sorted(path.stem for path in CAPTURES.glob("*.jsonl")))
async def test_recorded_requests_are_answered_and_recorded(make_lab, name):
    lab = make_lab(lambda _: "ok")
    answers = await replay(lab, name)
    assert answers
    assert {answer.status_code for answer in answers} == {200}
    calls = lab.calls()
    assert len(calls) == sum(request["method"] == "POST" for request in recorded(name))
    await lab.until(lambda: all(call.delivered for call in lab.calls()))
    agent = [call for call in calls if call.tools]  # the others are titles and the like
    for before, after in itertools.pairwise(agent):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.tools == before.tools
    said = [message for message in agent[-1].messages if message.role == "assistant"]
    assert len(said) == len(agent) - 1 == 4, "every reply came back as one message"
    assert all(message.tool_calls for message in said)


async def test_codex_gets_the_events_and_the_tools_that_it_expects(make_lab):
    lab = make_lab(lambda _: "<think>why</think>Closing." + tool_call("close_agent", {"target": "a"}))
    answers = await replay(lab, "codex")
    events = [json.loads(line[6:]) for line in answers[0].text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    reasoning, _, function = events[-1]["response"]["output"]
    assert (function["name"], function["namespace"]) == ("close_agent", "multi_agent_v1")
    call = lab.calls()[0]
    assert reasoning["encrypted_content"] in call.minted_ids
    names = [tool["function"]["name"] for tool in call.tools]
    assert "exec_command" in names
    assert "close_agent" in names
    assert {"namespace": "multi_agent_v1", "name": "close_agent", "shown": "close_agent"} in call.request_extra[
        "tools_flattened"
    ]
    assert [tool["type"] for tool in call.request_extra["tools_left_out"]] == ["web_search"]


async def test_reasoning_is_the_same_under_either_name(lab):
    async with lab.client() as client:
        for name in ("reasoning", "reasoning_content"):
            turn = {"role": "assistant", "content": "a", name: "why"}
            body = chat_body("q")
            body["messages"] += [turn, {"role": "user", "content": "go on"}]
            assert (await client.post("/chat/completions", json=body)).status_code == 200
    one, two = lab.calls()
    assert one.messages == two.messages
    assert one.messages[1].reasoning == "why"
