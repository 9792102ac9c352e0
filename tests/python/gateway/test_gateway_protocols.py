"""What every protocol must do alike: keep unknown fields, answer several replies, refuse images, name failures."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from gateway_lab import chat_body

BODY = {**chat_body("x"), "input": "x", "prompt": "x", "max_tokens": 100}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/responses", "/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_fields_that_nobody_knows_are_kept(lab, path, stream):
    unknown = {"mystery": {"deep": [1, None, "é"]}, "n_best": 3, "": ""}
    async with lab.client() as client:
        assert (await client.post(path, json={**BODY, **unknown, "stream": stream})).status_code == 200
    [call] = await lab.settled()
    assert {name: call.request_extra[name] for name in unknown} == unknown


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat", "completions"])
async def test_several_replies_of_one_request(make_lab, stream, kind):
    replies = iter("abc")
    lab = make_lab(lambda _: next(replies))
    async with openai.AsyncOpenAI(base_url=lab.access.url + "/v1", api_key=lab.access.key) as client:
        make: Any = client.chat.completions.create if kind == "chat" else client.completions.create
        asked = {"messages": [{"role": "user", "content": "x"}]} if kind == "chat" else {"prompt": "x"}
        answer = await make(model="m", n=3, stream=stream, **asked)
        said: dict[int, str] = {}
        async for choice in _choices(answer, stream):
            text = choice.text if kind == "completions" else getattr(choice, "delta" if stream else "message").content
            said[choice.index] = said.get(choice.index, "") + (text or "")
    calls = await lab.settled()
    assert sorted(said.values()) == ["a", "b", "c"]
    assert {call.request_id for call in calls} == {calls[0].request_id}
    assert [call.ordinal for call in calls] == [0, 1, 2]
    assert all(call.delivered for call in calls)


async def _choices(answer: Any, stream: bool) -> Any:
    if not stream:
        for choice in answer.choices:
            yield choice
        return
    async for chunk in answer:
        for choice in chunk.choices:
            yield choice


async def test_a_tool_result_that_is_an_error_is_told_and_recorded(lab):
    """The text reaches the model as it is; that it is an error is kept beside it."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": "no such file"}
    fine = {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": False, "content": "ok"}
    body = {**BODY, "messages": [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result, fine]}]}
    async with lab.client() as client:
        assert (await client.post("/messages", json=body)).status_code == 200
    [call] = await lab.settled()
    assert [message.content for message in call.messages[1:]] == ["no such file", "ok"]
    assert call.request_extra["tool_errors"] == ["toolu_1"]


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/messages", {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
        (
            "/messages",
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [IMAGE]}]}]},
            "messages[0].content[0].content[0]",
        ),
        (
            "/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        (
            "/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
    ],
)
async def test_images_are_refused_by_name_wherever_they_stand(lab, path, body, place):
    async with lab.client() as client:
        answer = await client.post(path, json={"model": "m", "max_tokens": 9, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "cannot be given to a text model" in error["message"]
    if path != "/messages":
        assert (error["code"], error["param"].startswith(place)) == ("unsupported_content", True)
    assert lab.calls() == []
