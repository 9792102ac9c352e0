"""The gateway under test: real server, real store, real clients; only the model is scripted."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from lightning_lab.gateway import Access, Gateway, Patience
from lightning_lab.policy.base import Chunk, Rendered, RenderError
from lightning_lab.records import Call, Ids, Message, Sampling
from lightning_lab.store import Store

END = 256
"""The end-of-turn id; all smaller ids are bytes."""


@dataclass
class Say:
    """One scripted reply."""

    text: str = ""
    error: Exception | None = None
    """Raised instead of the reply, or after ``pieces`` chunks of it."""
    pieces: int = 1
    hold: bool = False
    """Wait for `ScriptedPolicy.release` after the first chunk."""
    stubborn: bool = False
    """Ignore one cancellation while it waits."""
    finish_reason: str = "stop"
    logprob: float = -0.5
    chunks: Sequence[Chunk] = ()
    """Given as they are, instead of the text."""


Script = Callable[[str], Say | str]
"""Prompt text → reply."""


@dataclass
class ScriptedPolicy:
    """Speaks the `Policy` protocol in UTF-8 bytes."""

    script: Script
    name: str = "scripted"
    can_learn: bool = False
    version: int = 0
    context_length: int = 1_000_000
    cancelled: int = 0
    running: int = 0
    most_running: int = 0
    sampled: list[Sampling] = field(default_factory=list)
    _waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = field(default_factory=list)
    _released: bool = False

    def start(self) -> None: ...

    def close(self) -> None: ...

    def fingerprint(self) -> Mapping[str, str]:
        return {}

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        if any(message.content == "UNRENDERABLE" for message in messages):
            raise RenderError("The template cannot say this.")
        if any(message.content == "BUG" for message in messages):
            raise ZeroDivisionError("in render")
        turns = [f"[tools]{json.dumps(list(tools))}"] if tools else []
        turns += [f"[{message.role}]{said(message)}" for message in messages]
        ids = [one for turn in turns for one in (*turn.encode(), END)]
        return Rendered(ids=np.asarray([*ids, *b"[assistant]"], np.int32))

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    async def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        self.sampled.append(sampling)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            said = self.script(self.decode(prompt))
            async for chunk in self._chunks(said if isinstance(said, Say) else Say(said), sampling):
                yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _chunks(self, say: Say, sampling: Sampling) -> AsyncIterator[Chunk]:
        for chunk in say.chunks:
            yield chunk
        if say.chunks:
            return
        ids = [*say.text.encode(), END]
        if sampling.max_tokens is not None and len(ids) > sampling.max_tokens:
            ids, say.finish_reason = ids[: sampling.max_tokens], "length"
        if say.error is not None and say.pieces == 0:
            raise say.error
        size = max(1, -(-len(ids) // max(1, say.pieces)))
        for at in range(0, len(ids), size):
            last = at + size >= len(ids) and say.error is None and not say.hold
            yield self._chunk(ids[at : at + size], say, say.finish_reason if last else None)
            await asyncio.sleep(0)
        if say.hold:
            await self._hold(say)
        if say.error is not None:
            raise say.error
        if say.hold:
            yield self._chunk([], say, say.finish_reason)

    async def _hold(self, say: Say) -> None:
        event = asyncio.Event()
        if self._released:
            return
        self._waiting.append((asyncio.get_running_loop(), event))
        try:
            await event.wait()
        except asyncio.CancelledError:
            if not say.stubborn:
                raise
            await event.wait()

    def release(self) -> None:
        """End all holding, now and later. From any thread."""
        self._released = True
        for loop, event in self._waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def _chunk(self, ids: list[int], say: Say, finish_reason: str | None) -> Chunk:
        return Chunk(
            ids=np.asarray(ids, np.int32),
            logprobs=np.full(len(ids), say.logprob, np.float32),
            versions=np.full(len(ids), self.version, np.int32),
            finish_reason=finish_reason,
        )

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        text = self.decode(ids[ids != END])
        if "UNPARSABLE" in text:
            raise ZeroDivisionError("in parse")
        reasoning = re.match(r"<think>(.*?)</think>", text, re.DOTALL)
        if reasoning:
            text = text[reasoning.end() :]
        calls = [json.loads(call) for call in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)]
        return Message(
            role="assistant",
            content=re.sub(r"<tool_call>.*?</tool_call>", "", text, flags=re.DOTALL),
            reasoning=reasoning[1] if reasoning else "",
            tool_calls=tuple({"id": "", "name": c["name"], "arguments": json.dumps(c["arguments"])} for c in calls),
        )

    def decode(self, ids: Ids) -> str:
        turns = "".join(chr(one) for one in map(int, ids)).split(chr(END))
        return "<end>".join(turn.encode("latin-1").decode("utf-8", "replace") for turn in turns)


make_policy: Callable[..., ScriptedPolicy] = ScriptedPolicy
"""What labs answer with; tests may put another in its place."""


def said(message: Message) -> str:
    """A message as the scripted policy writes it."""
    thought = f"<think>{message.reasoning}</think>" if message.reasoning else ""
    calls = [
        f'<tool_call>{{"name": "{c["name"]}", "arguments": {c["arguments"]}}}</tool_call>' for c in message.tool_calls
    ]
    return thought + message.content + "".join(calls)


def tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    """What a model says to call a tool."""
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


@dataclass
class Lab:
    """A running gateway, and what is around it."""

    gateway: Gateway
    policy: ScriptedPolicy
    store: Store
    access: Access
    """Of rollout ``r-1``."""

    def open(self, rollout_id: str, **options: Any) -> Access:
        return self.gateway.open_rollout(rollout_id, **options)

    def client(self, access: Access | None = None, **options: Any) -> httpx.AsyncClient:
        access = access or self.access
        return httpx.AsyncClient(
            base_url=access.url + "/v1", headers={"authorization": f"Bearer {access.key}"}, timeout=30, **options
        )

    async def chat(self, text: str = "hello", **fields: Any) -> httpx.Response:
        """One chat request of rollout ``r-1``."""
        async with self.client() as client:
            return await client.post("/chat/completions", json=chat_body(text, **fields))

    def calls(self, rollout_id: str = "r-1") -> list[Call]:
        self.store.flush()
        return self.store.calls(rollout_id)

    async def settled(self) -> list[Call]:
        """The calls of ``r-1``, once every request has ended: a client may have its answer a moment before."""
        grants = self.gateway._grants._by_rollout
        await self.until(lambda: not any(grant.in_use for grant in list(grants.values())))
        return self.calls()

    async def until(self, true: Callable[[], bool], limit_s: float = 10) -> None:
        """Wait for the other threads."""
        async with asyncio.timeout(limit_s):
            while not true():  # noqa: ASYNC110 - other threads, no event to wait for
                await asyncio.sleep(0.005)


def chat_body(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": text}], **fields}


def echo(prompt: str) -> str:
    """The default script: repeat the last message."""
    return prompt.rpartition("<end>")[0].rpartition("]")[2]


HASTY = Patience(early_s=0.05, beat_s=0.05)
"""Early headers at once, for tests of what comes after them."""
