"""A stand-in that answers like a vLLM server, with what a real one (0.32.0, SmolLM2-135M) answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from lightning_lab.policy.catalog import resolve_model

GENERATED: Mapping[str, Any] = {
    "request_id": "generate-tokens-bdc733678e2ec7f4",
    "model": "policy",
    "created": 1795989100,
    "usage": {"prompt_tokens": 37, "total_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": None},
    "prompt_logprobs": None,
    "prompt_token_ids": None,
    "output_mode": "tokens",
    "choices": [
        {
            "index": 0,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": [16705, 314, 253],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}],
            "logprobs": {
                "content": [
                    {"token_id": 16705, "logprob": -2.177591323852539, "rank": 3, "top_logprobs": []},
                    {"token_id": 314, "logprob": -1.6228530406951904, "rank": 2, "top_logprobs": []},
                    {"token_id": 253, "logprob": -0.7866130471229553, "rank": 1, "top_logprobs": []},
                ]
            },
        }
    ],
}
PARSED: Mapping[str, Any] = {
    "id": "parse",
    "object": "chat.completion",
    "model": "policy",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning": "Three and four.",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "calc", "arguments": '{"expr": "3+4"}'}}
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
}
OVERFLOW = {
    "error": {
        "message": "The decoder prompt (length 14800) is longer than the maximum model length of 4096. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
}


class Recorded:
    """Answers by path on a Unix socket; what was asked is kept. An answer may also be a function of the request."""

    def __init__(self, folder: Path, answers: Mapping[str, Any], *, version: str = "0.32.0", name: str = "one") -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {
            "/version": {"version": version},
            "/inference/v1/generate": GENERATED,
            **answers,
        }
        self.url = f"unix://{folder / name}.sock"
        self._socket = str(folder / f"{name}.sock")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.UnixSite(self._runner, self._socket).start()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path_qs, body))
        answer = self.answers.get(request.path_qs, self.answers.get(request.path, {}))
        if isinstance(answer, Callable):  # type: ignore[arg-type]
            answer = answer(body)
        status, value = answer if isinstance(answer, tuple) else (200, answer)
        if value is ConnectionResetError:
            assert request.transport is not None
            request.transport.abort()
        if status == 200 and isinstance(body, Mapping) and body.get("stream"):
            return await self._told(request, value if isinstance(value, list) else [value])
        return web.json_response(value if isinstance(value, Mapping) else {}, status=status)

    async def _told(self, request: web.Request, events: Sequence[Any]) -> web.StreamResponse:
        """Event by event; an event may be something to wait for, and the last one a connection that breaks."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            if event is ConnectionResetError:
                assert request.transport is not None
                request.transport.abort()
                return response
            if isinstance(event, threading.Event):
                await asyncio.to_thread(event.wait, 30)
            else:
                await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


class Writer:
    """A learner that writes the shipped model's weights."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def export(self, directory: Path) -> None:
        for file in resolve_model("quickstart").glob("*.safetensors"):
            (directory / file.name).symlink_to(file)
