"""Requests that real harnesses sent, replayed: every one is answered and recorded."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from gateway_lab import chat_body

CAPTURES = Path(__file__).parents[2] / "data" / "captures"
HOP_BY_HOP = {"host", "content-length", "connection", "authorization"}


def recorded(name: str) -> list[dict]:
    lines = (CAPTURES / f"{name}.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["ev"] == "request"]


@pytest.mark.parametrize("name", sorted(path.stem for path in CAPTURES.glob("*.jsonl")))
async def test_recorded_requests_are_answered_and_recorded(make_lab, name):
    lab = make_lab(lambda _: "ok")
    requests = recorded(name)
    assert requests
    async with lab.client() as client:
        for request in requests:
            headers = {key: value for key, value in request["headers"] if key.lower() not in HOP_BY_HOP}
            path = request["path"].partition("/v1")[2]
            answer = await client.post(path, json=request["body"], headers=headers)
            assert answer.status_code == 200, answer.text
    calls = lab.calls()
    assert len(calls) == len(requests)
    for before, after in itertools.pairwise(calls):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.tools == before.tools
    said = [message for message in calls[-1].messages if message.role == "assistant"]
    assert len(said) == len(requests) - 1, "every reply came back as one message"
    assert all(message.tool_calls for message in said)


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
