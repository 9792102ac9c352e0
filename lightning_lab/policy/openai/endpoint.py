"""Requests to an endpoint and its events. A request is sent again only before the first byte of its answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai.faults import fault, is_overflow, may_pass, message_of
from lightning_lab.policy.openai.sessions import Sessions

_LONGEST_WAIT_S = 60.0
_ERROR_BYTES = 64 * 1024
"""Of an error's body that are read."""
_LINGER_S = 1.0
"""How long the end of a finished answer is waited for, so that its connection can be used again."""
_OPTIONAL = ("return_token_ids", "logprobs", "stream_options")
"""Fields that only ask to be told more: left out for good at an endpoint that refuses them."""
_DONE = b"[DONE]"


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
        self._sessions = Sessions(self.base_url, patience.silence_s)
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._refused: set[str] = set()
        self._limit_name = "max_tokens"

    def close(self) -> None:
        """End all connections. Idempotent, from any thread."""
        self._sessions.close()

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """The JSON events of an answer; an answer that is one JSON object is one event.

        Close the iterator to end the generation. Raises `PolicyError` and its kinds.
        """
        where = self._where(path)
        answer = await self._ask(path, body)
        try:
            async for event in _events(answer, where):
                yield event
        except TimeoutError as error:
            raise PolicyError(
                f"{where} stalled in the middle of its answer: nothing came for {self._patience.silence_s:g} s."
            ) from error
        except aiohttp.ClientError as error:
            raise PolicyError(f"{where} broke off in the middle of its answer: {_reason(error)}") from error
        finally:
            answer.response.close()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a small answer. Raises `PolicyError` when there is none."""
        try:
            session = self._sessions.of_this_loop()
            async with session.get(self.base_url + path, headers=self._headers, allow_redirects=False) as response:
                return response.status, await response.content.read(_ERROR_BYTES)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PolicyError(self._unreachable(path, error)) from error

    async def _ask(self, path: str, asked: Mapping[str, Any]) -> _Answer:
        """Ask until an answer has begun, or there is no hope."""
        body, tries = self._suited(asked), 0
        while True:
            pause = self._patience.pause_s * 2**tries * random.uniform(0.75, 1.25)
            try:
                response = await self._post(path, body)
                if response.status == 200:
                    return await _begun(response)
            except (aiohttp.ClientError, TimeoutError) as error:
                if tries == self._patience.retries:
                    raise PolicyError(self._unreachable(path, error)) from error
            else:
                said = await self._said(response)
                if (suited := self._without(body, response.status, said)) is not None:
                    body = suited
                    continue
                if tries == self._patience.retries or not may_pass(response.status, said):
                    raise fault(response.status, said, where=self._where(path))
                pause = max(pause, _retry_after(response))
            await asyncio.sleep(min(pause, _LONGEST_WAIT_S))
            tries += 1

    async def _post(self, path: str, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        return await self._sessions.of_this_loop().post(
            self.base_url + path, data=orjson.dumps(body), headers=self._headers, allow_redirects=False
        )

    async def _said(self, response: aiohttp.ClientResponse) -> str:
        try:
            return message_of(await response.content.read(_ERROR_BYTES), self.key)
        except (aiohttp.ClientError, TimeoutError):
            return "(its message broke off)."
        finally:
            response.close()

    def _suited(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body as this endpoint takes it, as far as that is known."""
        suited = {name: value for name, value in body.items() if name not in self._refused}
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


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer whose first bytes are there."""

    response: aiohttp.ClientResponse
    first: bytes

    async def parts(self) -> AsyncIterator[bytes]:
        """All bytes, as they come."""
        part = self.first
        while part:
            yield part
            part = await self.response.content.readany()


async def _begun(response: aiohttp.ClientResponse) -> _Answer:
    try:
        first = await response.content.readany()
        if not first:
            raise aiohttp.ClientPayloadError("closed before the first byte")
    except BaseException:
        response.close()
        raise
    return _Answer(response, first)


async def _events(answer: _Answer, where: str) -> AsyncIterator[dict[str, Any]]:
    kind = answer.response.content_type
    if kind == "text/event-stream":
        unfinished: list[bytes] = []  # lines have any length: the ids of a long prompt come in one
        async for part in answer.parts():
            unfinished.append(part)
            if b"\n" not in part:
                continue
            *lines, rest = b"".join(unfinished).split(b"\n")
            unfinished = [rest]
            for line in lines:
                if not line.startswith(b"data:"):  # comments and names of events
                    continue
                data = line[5:].strip()
                if data == _DONE:
                    await _linger(answer.response)
                    return
                if data:
                    yield _object(data, where)
        last = b"".join(unfinished).removeprefix(b"data:").strip()
        if last and last != _DONE:
            yield _object(last, where)
        return
    whole = b"".join([part async for part in answer.parts()])
    if kind != "application/json":
        raise PolicyError(
            f"{where} answered {kind}, which is no model's reply: {message_of(whole, '')} Is base_url right?"
        )
    yield _object(whole, where)


async def _linger(response: aiohttp.ClientResponse) -> None:
    if response.content.at_eof():
        return
    try:
        async with asyncio.timeout(_LINGER_S):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError):
        pass  # the reply is complete; only this connection cannot be used again


def _object(data: bytes, where: str) -> dict[str, Any]:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise PolicyError(f"{where} sent something that is no JSON: {error}") from None
    if not isinstance(event, dict):
        raise PolicyError(f"{where} sent {type(event).__name__} where an object was expected.")
    return event


def _retry_after(response: aiohttp.ClientResponse) -> float:
    try:
        return float(response.headers.get("Retry-After", ""))
    except ValueError:
        return 0.0


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
