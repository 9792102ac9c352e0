"""Requests to an endpoint and its events. A request is sent again only before the first byte of its answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai.connection import COMPRESSED, LONGEST_PART, Connection
from lightning_lab.policy.openai.connections import Connections
from lightning_lab.policy.openai.events import Buffer, Event, EventReader
from lightning_lab.policy.openai.faults import fault, is_overflow, may_pass, message_of

_LONGEST_WAIT_S = 60.0
_ERROR_BYTES = 64 * 1024
"""Of an error's body that are read."""
_BESIDE_BYTES = 64 * 1024 * 1024
"""Of what a server tells beside OpenAI's routes: it may repeat a prompt as ids."""
_ENCODINGS = frozenset({"", "identity", *COMPRESSED})
_LINGER_S = 1.0
"""How long the end of a finished answer is waited for, so that its connection can be used again."""
_OPTIONAL = ("return_token_ids", "logprobs", "stream_options")
"""Fields that only ask to be told more: left out for good at an endpoint that refuses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """With an endpoint that does not answer."""

    silence_s: float = 600.0
    """Until the headers, and between two pieces of an answer."""
    retries: int = 5
    """How often a request is sent again that got no byte of an answer."""
    pause_s: float = 0.5
    """Before the first retry; doubled before each further one."""


class Endpoint:
    """One base URL. Use it from any event loop."""

    def __init__(self, base_url: str, key: str, patience: Patience) -> None:
        self.base_url = base_url.rstrip("/")
        self.key = key
        self.reasoning_field = ""
        """The field in which its replies tell reasoning; empty until one did."""
        self._patience = patience
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._connections = Connections(self.base_url, headers, patience.silence_s)
        self._refused: set[str] = set()
        self._limit_name = "max_tokens"

    def close(self) -> None:
        """End all connections. Idempotent, from any thread."""
        self._connections.close()

    async def listen(self, path: str, body: Mapping[str, Any], hear: Callable[[Event, Buffer], None]) -> None:
        """Ask, and ``hear`` every event of the answer, read and as it came; an answer that is one JSON object is one.

        Cancelling it ends the generation. Raises `PolicyError` and its kinds.
        """
        where = self._where(path)
        answer, part = await self._ask(path, body)
        try:
            reader = EventReader(answer.headers.get("content-type", ""), where)
            while part:
                for event, data in reader.read(part):
                    hear(event, data)
                if reader.done:
                    await _linger(answer)
                    return
                if len(part) >= LONGEST_PART:
                    await asyncio.sleep(0)  # others' turn
                part = await answer.part()
            for event, data in reader.rest():
                hear(event, data)
        except TimeoutError as error:
            raise PolicyError(
                f"{where} stalled in the middle of its answer: nothing came for {self._patience.silence_s:g} s."
            ) from error
        except OSError as error:
            raise PolicyError(f"{where} broke off in the middle of its answer: {_reason(error)}") from error
        finally:
            answer.release()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a small answer. Raises `PolicyError` when there is none."""
        return await self._brief("GET", path, _ERROR_BYTES)

    async def post_beside(self, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """As `get`, of a route that is no part of OpenAI's interface: it stands beside ``/v1``."""
        return await self._brief("POST", path, _BESIDE_BYTES, orjson.dumps(body), beside=True)

    async def _brief(
        self, method: str, path: str, most: int, body: bytes = b"", *, beside: bool = False
    ) -> tuple[int, bytes]:
        try:
            answer = await self._connections.ask(method, path, body, beside=beside)
            try:
                return answer.status, await _small(answer, most)
            finally:
                answer.release()
        except OSError as error:
            raise PolicyError(self._unreachable(path, error)) from error

    async def _ask(self, path: str, asked: Mapping[str, Any]) -> tuple[Connection, bytes]:
        """Ask until an answer has begun, or there is no hope. Returns its first bytes, too."""
        body, tries = self._suited(asked), 0
        while True:
            pause = self._patience.pause_s * 2**tries * random.uniform(0.75, 1.25)
            try:
                answer = await self._connections.ask("POST", path, orjson.dumps(body))
                self._check_readable(answer, path)
                if answer.status == 200:
                    return answer, await _first_part(answer)
            except OSError as error:
                if tries == self._patience.retries:
                    raise PolicyError(self._unreachable(path, error)) from error
            else:
                said = await self._said(answer)
                if (suited := self._without(body, answer.status, said)) is not None:
                    body = suited
                    continue
                if tries == self._patience.retries or not may_pass(answer.status, said):
                    raise fault(answer.status, said, where=self._where(path))
                pause = max(pause, _retry_after(answer))
            await asyncio.sleep(min(pause, _LONGEST_WAIT_S))
            tries += 1

    def _check_readable(self, answer: Connection, path: str) -> None:
        encoding = answer.headers.get("content-encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            answer.close()
            raise PolicyError(
                f"{self._where(path)} answers compressed as {encoding!r}, although it was asked not to compress. "
                "Switch that off in the server, or in the proxy in front of it."
            )

    async def _said(self, answer: Connection) -> str:
        try:
            return message_of(await _small(answer), self.key)
        except OSError:
            return "(its message broke off)."
        finally:
            answer.release()

    def _suited(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body as this endpoint takes it, as far as that is known."""
        suited = dict(body)
        for name in self._refused & suited.keys():
            del suited[name]
        if "max_tokens" in suited:
            suited[self._limit_name] = suited.pop("max_tokens")
        return suited

    def _without(self, body: dict[str, Any], status: int, said: str) -> dict[str, Any] | None:
        """The body without what the endpoint refuses, or None when nothing can be left out.

        A reply's limit that does not fit into the context is left out as well: then the context is the limit.
        """
        if is_overflow(status, said):
            return {k: v for k, v in body.items() if k != self._limit_name} if self._limit_name in body else None
        if status not in (400, 422):
            return None
        if self._limit_name == "max_tokens" in body and "max_completion_tokens" in said:
            self._limit_name = "max_completion_tokens"
            return self._suited(body)
        named = [name for name in _OPTIONAL if name in body and name in said]
        self._refused.update(named)
        return {name: value for name, value in body.items() if name not in named} if named else None

    def _where(self, path: str) -> str:
        return f"The endpoint {self.base_url}{path}"

    def _unreachable(self, path: str, error: BaseException) -> str:
        return f"{self._where(path)} does not answer ({_reason(error)}). Is it running, and is base_url right?"


async def _first_part(answer: Connection) -> bytes:
    try:
        first = await answer.part()
        if not first:
            raise ConnectionError("closed before the first byte")
        return first
    except BaseException:
        answer.close()
        raise


async def _small(answer: Connection, most: int = _ERROR_BYTES) -> bytes:
    """The body, as much of it as an error says."""
    body = b""
    while len(body) < most and (part := await answer.part()):
        body += part
    return body[:most]


async def _linger(answer: Connection) -> None:
    if answer.at_end:
        return
    try:
        async with asyncio.timeout(_LINGER_S):
            while await answer.part():
                pass
    except OSError:
        pass  # the reply is complete; only this connection cannot be used again


def _retry_after(answer: Connection) -> float:
    try:
        return float(answer.headers.get("retry-after", ""))
    except ValueError:
        return 0.0


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
