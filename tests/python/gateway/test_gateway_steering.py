"""What a request says about the reply it wants goes on to a chat-level endpoint, from every protocol."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_lab import chat_body
from gateway_upstream import post

CALC = {"name": "calc", "description": "adds", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOLS = [{"type": "function", "function": CALC}]
RESPONSES = {"model": "any", "input": "2+2", "store": False, "tools": [{"type": "function", **CALC}]}
CLAUDE_TOOLS = [{"name": "calc", "description": "adds", "input_schema": {"type": "object", "properties": {}}}]
MESSAGES = {"model": "any", "max_tokens": 9, "messages": [{"role": "user", "content": "2+2"}], "tools": CLAUDE_TOOLS}
THE_CALC = {"type": "function", "function": {"name": "calc"}}


@pytest.mark.parametrize(
    ("path", "body", "choice", "sent"),
    [
        ("/chat/completions", chat_body(tools=CHAT_TOOLS), "required", "required"),
        ("/chat/completions", chat_body(tools=CHAT_TOOLS), THE_CALC, THE_CALC),
        ("/chat/completions", chat_body(tools=CHAT_TOOLS), "sometimes", None),
        ("/chat/completions", chat_body(tools=CHAT_TOOLS), 7, None),
        ("/chat/completions", chat_body(tools=CHAT_TOOLS), {"type": ["odd"], "function": 3}, None),
        ("/chat/completions", chat_body(), "required", None),
        ("/responses", RESPONSES, "none", "none"),
        ("/responses", RESPONSES, {"type": "function", "name": "calc"}, THE_CALC),
        ("/messages", MESSAGES, {"type": "any"}, "required"),
        ("/messages", MESSAGES, {"type": "tool", "name": "calc"}, THE_CALC),
    ],
)
async def test_a_choice_of_tools_is_told_in_the_endpoints_words(front, upstream, path, body, choice, sent):
    response = await post(front, path, {**body, "tool_choice": choice})
    assert response.status_code == 200, response.text
    assert upstream.bodies[0].get("tool_choice") == sent
    assert front.calls()[0].request_extra["tool_choice"] == choice


async def test_other_wishes_go_on_and_unknown_fields_do_not(front, upstream):
    wishes: dict[str, Any] = {"response_format": {"type": "json_object"}, "reasoning_effort": "low"}
    await front.chat("hello", parallel_tool_calls=False, user="me", **wishes)
    [asked] = upstream.bodies
    assert {name: asked.get(name) for name in wishes} == wishes
    assert "user" not in asked
    assert "parallel_tool_calls" not in asked, "it offers no tools"
