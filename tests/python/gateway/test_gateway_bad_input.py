"""The same bad input at every route: refused by name, in the shape of the route's protocol, and nothing recorded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from gateway_lab import Lab, chat_body

CALLS = ("/chat/completions", "/completions", "/responses", "/messages")
POSTS = (*CALLS, "/messages/count_tokens")
BODY = {**chat_body("x"), "input": "x", "prompt": "x", "max_tokens": 100}


def check(answer: httpx.Response, status: int, code: str) -> None:
    """``code``: OpenAI's; Anthropic's clients read a type instead."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    if "/v1/messages" in answer.url.path:
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        assert body["error"]["type"] == ANTHROPIC[status]
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["code"] == code
    assert body["error"]["message"]


ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
}


@pytest.fixture
def lab(make_lab: Any) -> Any:
    """Nothing that is refused leaves a record, and the lab goes on."""
    lab: Lab = make_lab()
    lab.open("r-2")
    yield lab
    assert lab.calls("r-1") == lab.calls("r-2") == []
    assert lab.gateway.admission.in_flight == lab.gateway.admission.held == 0
    with httpx.Client() as client:
        fresh = lab.open("r-3")
        headers = {"authorization": f"Bearer {fresh.key}"}
        answer = client.post(f"{fresh.url}/v1/chat/completions", json=BODY, headers=headers)
    assert answer.status_code == 200


NO_OBJECTS = [
    (b'{"model": "m", "messages": [', "invalid_json"),
    (b'{"model": "m"', "invalid_json"),
    (b"", "invalid_json"),
    (b"\x00", "invalid_json"),
    (b"\xff\xfe", "invalid_json"),
    (b'{"model": "\\ud800"}', "invalid_json"),
    (b"[" * 5000, "invalid_json"),
    (b'{"a":' * 5000, "invalid_json"),
    (b'{"temperature": NaN}', "invalid_json"),
    (b"<html></html>", "invalid_json"),
    (b'"text"', "invalid_type"),
    (b"7", "invalid_type"),
    (b"[]", "invalid_type"),
    (b"null", "invalid_type"),
]


@pytest.mark.parametrize("path", POSTS)
async def test_bodies_that_are_no_json_object(lab, path):
    async with lab.client() as client:
        for raw, code in NO_OBJECTS:
            check(await client.post(path, content=raw), 400, code)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


DEEP = {
    "unknown": '"x": {deep}',
    "tools": '"tools": [{"type": "function", "name": "f", "function": {"name": "f", "parameters": {"a": {deep}}}}]',
    "arguments": '"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": {"a": {deep}}}}]}]',
    "input": '"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"a": {deep}}}]}]',
    "metadata": '"metadata": {"a": {deep}}',
    "beside an image": '"messages": [{"y": {deep}, "role": "user", "content": [{"type": "image_url"}]}]',
}
"""Places of a body in which JSON may be nested without end."""


@pytest.mark.parametrize("path", POSTS)
async def test_bodies_without_a_bottom(lab, path):
    """What can be read but not written again is refused before anything is made of it."""
    sound = json.dumps(BODY)[1:-1]
    async with lab.client() as client:
        for place in DEEP.values():
            for levels in (230, 300, 900, 1010):
                raw = "{" + sound + ", " + place.replace("{deep}", nested(levels)) + "}"
                check(await client.post(path, content=raw), 400, "invalid_json")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CALLS)
async def test_deep_bodies_are_answered_and_come_back_from_the_store(make_lab, path, stream):
    lab, deep = make_lab(), json.loads(nested(180))
    body = {**BODY, "stream": stream, "x": deep, "metadata": {"a": deep}}
    async with lab.client() as client:
        assert (await client.post(path, json=body)).status_code == 200
    assert [call.request_extra["x"] for call in lab.calls()] == [deep]


@pytest.mark.parametrize("path", POSTS)
async def test_fifty_megabytes(lab, path):
    async with lab.client() as client:
        check(await client.post(path, content=b'{"model": "' + b"x" * 50_000_000), 413, "body_too_large")


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "0x10", "1_0", "\u0663", "99999999999999999999999999"])
async def test_lengths_that_are_no_number(lab, length):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(lab.gateway.url.rpartition(":")[2]))
    head = f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {lab.access.key}\r\n"
    writer.write(head.encode() + f"content-length: {length}\r\n\r\n{{}}".encode())
    status = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    assert status.split()[1] in (b"400", b"413")


@pytest.mark.parametrize("path", POSTS)
async def test_compressed(lab, path):
    async with lab.client() as client:
        check(await client.post(path, content=b"x", headers={"content-encoding": "br"}), 415, "unsupported_encoding")


@pytest.mark.parametrize("path", [*POSTS, "/models", "/models/m"])
async def test_who_may_not(lab, path):
    method = "GET" if path.startswith("/models") else "POST"
    root, mine = lab.gateway.url, {"authorization": f"Bearer {lab.access.key}"}
    other = lab.open("r-2")

    async def send(base: str, headers: dict[str, str]) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.request(method, f"{base}/v1{path}", content=b"{", headers=headers)

    check(await send(lab.access.url, {}), 401, "invalid_api_key")
    check(await send(lab.access.url, {"authorization": "Bearer wrong"}), 401, "invalid_api_key")
    check(await send(f"{root}/rollout/r-9", mine), 404, "rollout_not_found")
    check(await send(other.url, mine), 403, "attribution_conflict")
    check(await send(root, {**mine, "x-lightning-lab-rollout": "r-2"}), 403, "attribution_conflict")
    check(await send(lab.access.url, {**mine, "x-lightning-lab-rollout": "r-2"}), 403, "attribution_conflict")
    check(await send(root, {**mine, "x-api-key": other.key}), 403, "attribution_conflict")
    lab.gateway.close_rollout("r-1")
    check(await send(lab.access.url, mine), 409, "rollout_finished")


async def test_other_methods(lab):
    async with lab.client() as client:
        for path in POSTS:
            for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
                check(await client.request(method, path), 405, "method_not_allowed")


async def test_unknown_routes(lab):
    async with lab.client() as client:
        for path in ("/messages/nothing", "/messages/", "/responses/resp_1", "/chat", "/", "/embeddings"):
            check(await client.post(path, json=BODY), 404, "unknown_url")


@pytest.mark.parametrize("path", CALLS)
async def test_unknown_models_are_answered_and_recorded(make_lab, path):
    lab, names = make_lab(), ["org/model:7b", "ü", "a b", "x" * 2000, "../..", "%2e%2e", "<b>", ""]
    async with lab.client() as client:
        for name in names:
            said = (await client.post(path, json={**BODY, "model": name})).json()["model"]
            assert said == (name or "scripted")
    assert [call.model for call in lab.calls()] == names
