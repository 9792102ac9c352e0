"""An OpenAI-compatible server whose answers a test scripts, over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
from aiohttp import web
from gateway_lab import Lab, chat_body

from lightning_lab.policy.openai.endpoint import Patience

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Upstream:
    """Gives its scripted answers one after another; the last one again and again."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.models: list[dict[str, Any]] = [{"id": "m", "object": "model"}]
        self.models_status = 200
        self.tokenized: dict[str, Any] = {}
        self.gone = asyncio.Event()
        """A client went away in the middle of an answer."""
        self._answers: deque[Answer] = deque()
        self.url = ""

    def say(self, *answers: Answer) -> None:
        """What it answers from now on."""
        self._answers = deque(answers)

    async def start(self) -> web.AppRunner:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_post("/v1/{path:.*}", self._answer)
        app.router.add_post("/tokenize", self._tokenize)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.models}, status=self.models_status)

    async def _tokenize(self, request: web.Request) -> web.Response:
        """As vLLM counts, where a test says what."""
        self.bodies.append(await request.json())
        self.paths.append(request.path)
        return web.json_response(self.tokenized, status=200 if self.tokenized else 404)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.paths.append(request.path)
        self.keys.append(request.headers.get("Authorization", ""))
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.popleft()
        try:
            return await answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise


def chunk(
    content: str | None = None,
    ids: Sequence[int | None] | None = None,
    logprobs: Sequence[float | None] | None = None,
    *,
    finish: str | None = None,
    **delta: Any,
) -> dict[str, Any]:
    """One chunk of a chat stream, as vLLM writes it."""
    told = (
        None if logprobs is None else {"content": [{"token": f"t{at}", "logprob": p} for at, p in enumerate(logprobs)]}
    )
    said = {**({"content": content} if content is not None else {}), **delta}
    return {"choices": [{"index": 0, "delta": said, "logprobs": told, "token_ids": ids, "finish_reason": finish}]}


def opening(prompt_ids: Sequence[int] | None) -> dict[str, Any]:
    return {"prompt_token_ids": prompt_ids, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}


def usage(prompt: Any, sampled: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": sampled}}


def tool_delta(name: str | None, arguments: str, *, index: int = 0) -> list[dict[str, Any]]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return [{"index": index, "id": "call_theirs", "type": "function", "function": function}]


HELLO = [
    opening([1, 2, 3]),
    chunk("Hel", [10], [-0.1]),
    chunk("lo", [11, 12], [-0.2, -0.3]),
    chunk(None, [13], [-0.4], finish="stop"),
    usage(3, 4),
]
"""A whole reply with exact ids."""


def events(*said: dict[str, Any] | str, done: bool = True, then: str = "end", headers: Any = None) -> Answer:
    """A stream of events; ``then``: ``end``, ``break`` (cut the connection) or ``stall``."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", **(headers or {})})
        await response.prepare(request)
        for one in said:
            data = one if isinstance(one, str) else json.dumps(one)
            await response.write(f"data: {data}\n\n".encode())
        if then == "stall":
            await asyncio.sleep(60)
        if then == "break":
            assert request.transport is not None
            request.transport.abort()
            return response
        if done:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    return answer


def status(code: int, body: Any, *, kind: str = "application/json", headers: Any = None) -> Answer:
    """A whole answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=code, text=text, content_type=kind, headers=headers)

    return answer


def compressed(*said: dict[str, Any] | str, encoding: str = "gzip", pieces: int = 1) -> Answer:
    """A stream of events, compressed although nobody asked for it, in pieces that end anywhere."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.headers["Accept-Encoding"] == "identity"
        lines = [one if isinstance(one, str) else json.dumps(one) for one in (*said, "[DONE]")]
        text = "".join(f"data: {line}\n\n" for line in lines).encode()
        data = zlib.compress(text) if encoding == "deflate" else gzip.compress(text)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Content-Encoding": encoding})
        await response.prepare(request)
        size = -(-len(data) // pieces)
        for at in range(0, len(data), size):
            await response.write(data[at : at + size])
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    return answer


def refusal(http: int, message: str, **more: Any) -> Answer:
    """An error in OpenAI's shape."""
    return status(http, {"error": {"message": message, **more}})


def nothing() -> Answer:
    """The connection is cut before any byte."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return answer


def silence() -> Answer:
    """No byte for longer than any test waits."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    return answer


QUICK = Patience(silence_s=5.0, retries=2, pause_s=0.01)
KEY = "sk-upstream-secret"

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/chat/completions", chat_body("hello")),
    "completions": ("/completions", {"model": "any", "prompt": "hello"}),
    "responses": ("/responses", {"model": "any", "input": "hello", "store": False}),
    "messages": (
        "/messages",
        {"model": "any", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]},
    ),
}
"""Route and body of one request, by protocol."""

RAW_HELLO = [
    {"choices": [{"index": 0, "text": "Hel", "prompt_token_ids": [1, 2, 3], "token_ids": [10],
                  "logprobs": {"tokens": ["Hel"], "token_logprobs": [-0.1]}}]},
    {"choices": [{"index": 0, "text": "lo", "token_ids": [11, 12], "finish_reason": "stop",
                  "logprobs": {"tokens": ["l", "o"], "token_logprobs": [-0.2, -0.3]}}]},
    usage(3, 3),
]  # fmt: skip
"""A whole reply of ``/completions``."""


async def post(front: Lab, path: str, body: dict[str, Any]) -> httpx.Response:
    async with front.client() as client:
        return await client.post(path, json=body)
