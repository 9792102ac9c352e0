"""Requests to vLLM servers: JSON there, JSON back, over a Unix socket or a URL, from one event loop in a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import orjson

from lightning_lab.policy.base import ContextOverflowError, PolicyError, PromptError
from lightning_lab.policy.openai.faults import is_overflow, message_of
from lightning_lab.policy.vllm.errors import EngineDiedError

_T = TypeVar("_T")

_CONNECT_S = 10.0
_EVENT_BYTES = 1 << 23
"""Of an event, at least, that can be read: a server puts all that waited for a slow reader into one."""
CONTROL_S = 120.0
"""How long a server may take for what is no generation."""


class Loop:
    """An event loop in a thread of its own: asking the servers neither waits for the gateway nor keeps it waiting."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lightning-lab-vllm", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Raises `PolicyError` after `close`."""
        if self._loop.is_closed():
            work.close()
            raise PolicyError("This policy is closed. Make a new one.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """From any thread but the loop's own."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def elsewhere(self, work: Coroutine[Any, Any, _T]) -> _T:
        """From another event loop; cancelling the waiting cancels the work."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Cancel what runs and end the thread. Idempotent."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Connection:
    """One server. Its coroutines belong to one event loop."""

    def __init__(self, address: str, *, name: str, key: str = "") -> None:
        """``address``: a URL, where ``unix:///path`` is that of a socket."""
        self.name = name
        self._socket = address.removeprefix("unix://") if address.startswith("unix://") else None
        self._base_url = "http://localhost" if self._socket else address.rstrip("/")
        host = "" if self._socket else urlsplit(address).hostname or ""
        self.host = "" if host in ("localhost", "::1") or host.startswith("127.") else host
        """Its machine; empty: this one."""
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = CONTROL_S
    ) -> dict[str, Any]:
        """The server's answer. Raises `EngineDiedError`, `ContextOverflowError`, `PromptError`, `PolicyError`."""
        data = b"" if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        return await self._ask("POST", path, data, timeout_s)

    async def get(self, path: str, *, timeout_s: float | None = CONTROL_S) -> dict[str, Any]:
        return await self._ask("GET", path, None, timeout_s)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """What the server tells while it answers. Raises as `post`, also in the middle."""
        data = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        async with self._answering("POST", path, data, None) as response:
            if response.status != 200:
                raise self._refusal(path, response.status, message_of(await response.read(), self._key))
            async for line in response.content:
                said = line.removeprefix(b"data:").strip()
                if said == b"[DONE]":
                    return
                if said:
                    event = _object(said)
                    if "error" in event:
                        raise self._refusal(path, 500, message_of(said, self._key))
                    yield event
        raise self._broken(path, "its answer has no end")

    async def _ask(self, method: str, path: str, data: bytes | None, timeout_s: float | None) -> dict[str, Any]:
        async with self._answering(method, path, data, timeout_s) as response:
            said = await response.read()
        if response.status != 200:
            raise self._refusal(path, response.status, message_of(said, self._key))
        return _object(said)

    @asynccontextmanager
    async def _answering(
        self, method: str, path: str, data: bytes | None, timeout_s: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
        try:
            async with self._opened().request(method, self._base_url + path, data=data, timeout=timeout) as response:
                yield response
        except TimeoutError as error:
            if timeout_s is None:
                raise self._broken(path, f"it could not be reached within {_CONNECT_S:g} s") from error
            raise EngineDiedError(f"{self.name} did not answer {path} within {timeout_s:g} s.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(path, str(error) or type(error).__name__) from error

    def _broken(self, path: str, how: str) -> EngineDiedError:
        return EngineDiedError(
            f"{self.name} broke off while it answered {path} ({how}). What was being sampled there is lost; nothing of "
            "it trains."
        )

    def _refusal(self, path: str, status: int, said: str) -> PolicyError:
        answered = f"{self.name} answered {path} with {status}: {said}"
        if is_overflow(status, said):
            return ContextOverflowError(f"{answered} Shorten the conversation.")
        if status in (400, 422):
            return PromptError(answered)
        if status == 404:
            return PolicyError(
                f"{answered} Start the server with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out, in a version that "
                "the lab supports."
            )
        return PolicyError(answered)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = _connector(self._socket)
            headers = {"Content-Type": "application/json"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(connector=connector, headers=headers, read_bufsize=_EVENT_BYTES)
        return self._session


def _connector(socket: str | None) -> aiohttp.BaseConnector:
    """A connection for each request. vLLM's server closes one after 5 s, and after every 500, without saying so before:
    a request that is just then on its way is lost."""
    if socket:
        return aiohttp.UnixConnector(socket, limit=0, force_close=True)
    return aiohttp.TCPConnector(limit=0, force_close=True)


def _object(said: bytes) -> dict[str, Any]:
    """Some routes answer with nothing."""
    value = orjson.loads(said) if said else {}
    return value if isinstance(value, dict) else {"answer": value}


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
