"""Streams tell a reply while it is being sampled; its end waits for the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import gateway_lab
import httpx
import pytest
from gateway_lab import END, Lab, Say, ScriptedPolicy, tool_call
from gateway_upstream import ASKED, chunk, opening

from lightning_lab.gateway import Patience
from lightning_lab.gateway.delivery import Delivery
from lightning_lab.gateway.protocols.chat import Chat, ChatStream
from lightning_lab.gateway.protocols.wire import Choice, Head, Stream
from lightning_lab.records import Message, Sampling
from lightning_lab.tokens.beginning import Beginning

AT_ONCE = Patience(tell_s=0.01)


class Forthcoming(ScriptedPolicy):
    """Knows what is sure of a reply before its end."""

    def beginning(self) -> Beginning:
        return Beginning(self.decode, {END}, opened=False)


@pytest.fixture
def make_forthcoming(make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lab]:
    monkeypatch.setattr(gateway_lab, "make_policy", Forthcoming)
    return lambda *arguments, **options: make_lab(*arguments, **{"patience": AT_ONCE, **options})


def asked(protocol: str) -> tuple[str, dict[str, Any]]:
    path, body = ASKED[protocol]
    more = {"thinking": {"type": "enabled"}, "max_tokens": 500} if protocol == "messages" else {}
    return path, {**body, "stream": True, **more}


async def events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def told(event: dict[str, Any]) -> tuple[str, str]:
    """What kind of event it is, and the text that it adds."""
    if "choices" in event:
        [choice] = event["choices"] or [{}]
        delta = choice.get("delta", {"content": choice.get("text")})
        kind = next((name for name in ("reasoning_content", "content", "tool_calls") if delta.get(name)), "other")
        return kind, delta.get(kind) or "" if kind != "tool_calls" else ""
    delta = event.get("delta", "")
    text = delta if isinstance(delta, str) else delta.get("text") or delta.get("thinking") or ""
    kind = "" if isinstance(delta, str) else delta.get("type", "")
    return f"{event.get('type', 'error')} {kind}", text


def in_short(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Deltas of one text as one; signs of life left out."""
    pairs = [told(event) for event in found if event.get("type") != "ping"]
    return [(kind, "".join(text for _, text in some)) for kind, some in groupby(pairs, key=lambda pair: pair[0])]


THOUGHT, WORDS = "Hm, let me see.", "The answer, I think, is four."
REPLY = f"<think>{THOUGHT}</think>{WORDS}" + tool_call("run", {"a": 1})


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
async def test_it_is_told_before_its_end_and_says_the_same(make_forthcoming, protocol):
    lab = make_forthcoming(lambda prompt: Say(REPLY, hold=True, pieces=20))
    path, body = asked(protocol)
    found: list[dict[str, Any]] = []
    released = False
    async with lab.client() as client, client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        async for event in events(answer):
            found.append(event)
            if not released and "".join(text for _, text in in_short(found)) == THOUGHT + WORDS:
                released = True
                assert lab.gateway.admission.in_flight == 1
                assert lab.calls() == [], "it is not stored yet"
                lab.policy.release()
        early = in_short(found)
        whole = await client.post(path, json=body)
    assert released
    assert early == in_short([json.loads(line[6:]) for line in whole.text.splitlines() if line.startswith("data: {")])
    assert [call.reply.content for call in lab.calls()] == [WORDS] * 2
    assert all(call.delivered for call in await lab.settled())
    if protocol == "responses":
        assert [event["sequence_number"] for event in found] == list(range(len(found)))


async def test_raw_text_is_told_too(make_forthcoming):
    lab = make_forthcoming(lambda prompt: Say("some text", hold=True))
    path, body = asked("completions")
    async with lab.client() as client, client.stream("POST", path, json=body) as answer:
        texts = ""
        async for event in events(answer):
            texts += event["choices"][0]["text"]
            if texts == "some text":
                lab.policy.release()
    assert (texts, event["choices"][0]["finish_reason"]) == ("some text", "stop")


async def test_what_may_be_the_text_that_ends_a_reply_is_kept_back(make_forthcoming):
    lab = make_forthcoming(lambda prompt: Say("one two STOP", hold=True))
    path, body = asked("chat")
    async with lab.client() as client, client.stream("POST", path, json=body | {"stop": ["STOP"]}) as answer:
        text = ""
        async for event in events(answer):
            text += told(event)[1]
            assert "S" not in text
            if text == "one two ":
                lab.policy.release()
    assert text == "one two "
    assert lab.policy.decode(lab.calls()[0].sampled_ids).startswith("one two STOP")


@pytest.mark.parametrize(
    ("protocol", "last"),
    [("chat", "error"), ("completions", "error"), ("responses", "response"), ("messages", "error")],
)
async def test_a_fault_after_the_first_words_is_the_streams_own_and_they_are_kept(make_forthcoming, protocol, last):
    lab = make_forthcoming(lambda prompt: Say("Well, then", hold=True, error=RuntimeError("boom")))
    path, body = asked(protocol)
    async with lab.client() as client, client.stream("POST", path, json=body) as answer:
        said = ""
        async for event in events(answer):
            said += told(event)[1]
            lab.policy.release()
    assert said == "Well, then"
    assert "boom" in json.dumps(event[last])
    [call] = await lab.settled()
    assert (call.kind, call.delivered, lab.policy.decode(call.sampled_ids)) == ("undelivered", False, "Well, then<end>")


async def test_a_client_that_leaves_after_the_first_words_cancels_the_rest(make_forthcoming):
    lab = make_forthcoming(lambda prompt: Say("Well, then", hold=True))
    path, body = asked("chat")
    async with lab.client() as client, client.stream("POST", path, json=body) as answer:
        await anext(aiter(events(answer)))
    await lab.until(lambda: lab.policy.cancelled == 1)
    [call] = await lab.settled()
    assert (call.kind, call.delivered) == ("undelivered", False)


async def test_a_reply_that_is_parsed_otherwise_than_it_began_is_a_fault(make_forthcoming, monkeypatch):
    monkeypatch.setattr(Forthcoming, "parse", lambda self, ids, tools=(): Message(role="assistant", content="no"))
    lab = make_forthcoming(lambda prompt: Say("yes", hold=True))
    path, body = asked("chat")
    async with lab.client() as client, client.stream("POST", path, json=body) as answer:
        found = []
        async for event in events(answer):
            found.append(event)
            lab.policy.release()
    assert found[-1]["error"]["code"] == "policy_error"
    assert [call.delivered for call in await lab.settled()] == [False]


async def test_an_endpoints_words_go_on_as_they_come(make_front, upstream):
    """The reply is cut after its first words: they were told, and the rest is an error."""
    front = make_front()
    front.gateway._capture.patience = AT_ONCE
    ready = asyncio.Event()

    async def slowly(request: Any) -> Any:
        from aiohttp import web

        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for one in (opening([1, 2]), chunk("Hel", [10], [-0.1]), None, chunk("lo", [11], [-0.2], finish="stop")):
            if one is None:
                await ready.wait()
            else:
                await response.write(f"data: {json.dumps(one)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    upstream.say(slowly)
    path, body = asked("messages")
    said = ""
    async with front.client() as client, client.stream("POST", path, json=body) as answer:
        async for event in events(answer):
            said += told(event)[1]
            if said == "Hel":
                ready.set()
    assert (said, event["type"]) == ("Hello", "message_stop")
    assert front.calls()[0].sampled_ids.tolist() == [10, 11]


@dataclass
class TwoWords:
    """Always something to tell."""

    stream: Stream

    def look(self) -> bool:
        return True

    def events(self) -> bytes:
        return self.stream.progress(Message(role="assistant", content="one two"))


async def test_words_whose_writing_was_cut_short_are_written_once():
    """The end comes while earlier words wait for a slow reader."""
    request = Chat().read({**gateway_lab.chat_body(), "stream": True})
    head = Head(id="chatcmpl-1", created=0, model="m", request=request, used=Sampling(), prompt_tokens=1)
    stream, sent, blocked = ChatStream(head), [], asyncio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not blocked.is_set():
            blocked.set()
            await asyncio.Event().wait()
        sent.append(message.get("body", b""))

    delivery = Delivery(send, lambda: False, error=Chat().error, early_s=60, beat_s=60, tell_s=0)
    delivery.expect(stream, TwoWords(stream))
    await blocked.wait()
    choice = Choice(
        message=Message(role="assistant", content="one two three"), text="", finish_reason="stop", sampled_tokens=3
    )
    assert await delivery.finish(lambda: stream.closing([choice]))
    lines = [json.loads(line[6:]) for line in b"".join(sent).splitlines() if line.startswith(b"data: {")]
    assert [line["choices"][0]["delta"].get("content") for line in lines] == ["", "one two", " three", None]
