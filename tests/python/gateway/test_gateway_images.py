"""Images go to endpoints whose model may see them, as they were sent and in their places; they are stored once."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from gateway_upstream import ASKED, post

from lightning_lab.gateway.openapi import document
from lightning_lab.notebook.detail import message_fields
from lightning_lab.records import Message

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DATA = f"data:image/png;base64,{PIXEL}"
HTTP = "http://pictures.example/1.png"
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
CHAT = {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def shown(url: str, **detail: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **detail}}


USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("here"), BLOCK]}
CASES: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "chat": (
        "/chat/completions",
        {"messages": [{"role": "user", "content": [text("a"), CHAT, text("b"), text("c")]}]},
        [{"role": "user", "content": [text("a"), shown(DATA, detail="low"), text("b\nc")]}],
    ),
    "responses": (
        "/responses",
        {
            "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": HTTP}]},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_image", "image_url": DATA}],
                },
            ]
        },
        [
            {"role": "user", "content": [shown(HTTP)]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
            },
            {"role": "tool", "content": "", "tool_call_id": "c1"},
            {"role": "user", "content": [shown(DATA)]},
        ],
    ),
    "messages": (
        "/messages",
        {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": [BLOCK, text("what is this?")]},
                {"role": "assistant", "content": [USE]},
                {"role": "user", "content": [RESULT, text("go on")]},
            ],
        },
        [
            {"role": "user", "content": [shown(DATA), text("what is this?")]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
            },
            {"role": "tool", "content": "here", "tool_call_id": "toolu_1"},
            {"role": "user", "content": [shown(DATA)]},
            {"role": "user", "content": "go on"},
        ],
    ),
}


@pytest.mark.parametrize("protocol", CASES)
async def test_they_go_on_in_their_places_and_come_back_from_the_store(front, upstream, protocol):
    path, body, asked = CASES[protocol]
    assert (await post(front, path, {"model": "m", **body})).status_code == 200
    assert upstream.bodies[-1]["messages"] == asked
    [call] = front.calls()
    said = [part for message in asked if isinstance(message["content"], list) for part in message["content"]]
    assert [image["url"] for message in call.messages for image in message.images] == [
        part["image_url"]["url"] for part in said if part["type"] == "image_url"
    ]


@pytest.mark.parametrize("protocol", CASES)
def test_the_gateways_description_has_them(protocol):
    path, body, _ = CASES[protocol]
    asked = document()["paths"][f"/v1{path}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.validate({"model": "m", **body}, asked)


async def test_an_image_that_is_sent_again_is_stored_once(front, upstream):
    big = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PIXEL * 5000}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": [big, text("look")]}]
    for turn in range(10):
        answer = await post(front, "/chat/completions", {"model": "m", "messages": messages})
        messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": f"go on {turn}"}]
    assert len(front.calls()) == 10
    size = sum(path.stat().st_size for path in front.store.path.parent.glob("store.sqlite*"))
    assert len(PIXEL) * 5000 < size < 3 * len(PIXEL) * 5000  # once in the file, once in its log


async def test_equal_words_about_other_images_are_other_conversations(front, upstream):
    asked = [{"role": "user", "content": [text("what?"), shown(url)]} for url in (HTTP, DATA)]
    answer = await post(front, "/chat/completions", {"model": "m", "messages": asked[:1]})
    first = answer.json()["choices"][0]["message"]
    await post(front, "/chat/completions", {"model": "m", "messages": [asked[1], first, asked[0]]})
    assert [call.parent_id for call in front.calls()] == [None, None]


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"type": "image_url"}, "invalid_value"),
        ({"type": "image_url", "image_url": {"url": 7}}, "invalid_type"),
        ({"type": "image_url", "image_url": {"url": DATA, "detail": []}}, "invalid_type"),
        ({"type": "input_image", "file_id": "file-1"}, "invalid_value"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "unsupported_content"),
        ({"type": "image", "source": "x"}, "invalid_type"),
        ({"type": "input_audio", "input_audio": {}}, "unsupported_content"),
        ({"type": "file", "file": {}}, "unsupported_content"),
    ],
)
async def test_what_is_no_image_is_refused_by_name(front, upstream, part, code):
    body = {"model": "m", "messages": [{"role": "user", "content": [text("a"), part]}]}
    answer = await post(front, "/chat/completions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert answer.json()["error"]["param"].startswith("messages[0].content[1]")
    assert front.calls() == upstream.bodies == []


async def test_a_server_that_counts_is_asked(front, upstream):
    upstream.tokenized = {"count": 17, "max_model_len": 100, "tokens": [1] * 100_000}
    body = CASES["messages"][1] | {"model": "m", "tools": [{"name": "look", "input_schema": {"type": "object"}}]}
    answer = await post(front, "/messages/count_tokens", body)
    assert (answer.status_code, answer.json()) == (200, {"input_tokens": 17})
    assert upstream.paths == ["/tokenize"]
    assert upstream.bodies[0]["messages"] == CASES["messages"][2]
    assert upstream.bodies[0]["tools"][0]["function"]["name"] == "look"
    upstream.tokenized = {"tokens": [1, 2]}  # what another server makes of it
    assert (await post(front, "/messages/count_tokens", ASKED["messages"][1])).status_code == 404
    assert front.calls() == []


def test_they_are_shown_by_kind_and_size() -> None:
    images = ({"url": DATA, "after": 0}, {"url": HTTP, "after": 0})
    content = message_fields(Message(role="user", content="look", images=images))["content"]
    assert content == f"look\n[image: image/png, {len(PIXEL) * 3 // 4} bytes]\n[image at an address]"
