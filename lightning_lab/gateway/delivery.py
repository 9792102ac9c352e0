"""One HTTP response: begun as late as clients allow, so that most faults still have a status of their own.

A reply is written when it is complete and stored. Until then the client sees silence; after ``early_s`` it gets the
headers and, from then on, something that keeps it waiting: the protocol's own keep-alive in a stream, white space
before a JSON body. A fault after that is the protocol's error event, or a closed connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from starlette.types import Send

from lightning_lab.gateway.errors import Fault
from lightning_lab.gateway.protocols.wire import Stream

_SOCKET_BUFFER = 2**15
"""A body up to this size is handed to the kernel at once."""


class Delivery:
    """Writes one answer. ``gone`` tells whether the client has disconnected, ``error`` the body of a refusal."""

    def __init__(
        self,
        send: Send,
        gone: Callable[[], bool],
        *,
        error: Callable[[Fault], Mapping[str, Any]],
        early_s: float,
        beat_s: float,
    ) -> None:
        self._send = send
        self._error = error
        self._gone = gone
        self._early_s = early_s
        self._beat_s = beat_s
        self._stream: Stream | None = None
        self._started = False
        self._opened = False
        self._heart: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def expect(self, stream: Stream | None) -> None:
        """The request is sound and an answer will come, as events or as one JSON body: keep the client waiting."""
        self._stream = stream
        self._alarm = asyncio.get_running_loop().call_later(self._early_s, self._start_heart)

    async def finish(self, reply: Callable[[], bytes]) -> bool:
        """Write the reply. True when the last byte went out before a disconnect was seen.

        ``reply`` is called when nothing else will be written: events are numbered in the order of their making.
        """
        await self._stop_heart()
        opening = self._stream.opening() if self._stream is not None and not self._opened else b""
        body = opening + reply()
        if not self._started:
            await self._begin(200, None if self._stream else len(body))
        if len(body) > _SOCKET_BUFFER:
            await self._write(body)
            await self._write(b"")  # returns when a slow reader has taken the rest, or is gone
            await asyncio.sleep(0)  # lets a disconnect be seen
            body = b""
        if self._gone():
            return False
        await self._send({"type": "http.response.body", "body": body})
        return True

    async def fail(self, fault: Fault) -> None:
        """Write the fault. Where headers are out and no stream can tell it, the answer stays unfinished: the server
        then closes the connection, and the client sees that."""
        await self._stop_heart()
        if not self._started:
            await self._refuse(fault)
        elif self._stream is not None:
            await self._send({"type": "http.response.body", "body": self._stream.failure(fault)})

    def abandon(self) -> None:
        """Write nothing more. Idempotent."""
        if self._alarm is not None:
            self._alarm.cancel()
        if self._heart is not None:
            self._heart.cancel()

    async def _refuse(self, fault: Fault) -> None:
        retry = (b"x-should-retry", b"true" if fault.retry else b"false")
        start, body = json_response(fault.status, self._error(fault), (retry, *fault.headers))
        await self._send(start)
        await self._send(body)

    async def _begin(self, status: int, length: int | None) -> None:
        headers = [(b"content-type", b"application/json")]
        if self._stream is not None:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        self._started = True  # only now: the heart may be cancelled while it waits to write

    def _start_heart(self) -> None:
        self._heart = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        await self._begin(200, None)
        await self._write(self._stream.opening() if self._stream else b" ")
        self._opened = True
        while True:
            await asyncio.sleep(self._beat_s)
            await self._write(self._stream.beat() if self._stream else b" ")

    async def _write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _stop_heart(self) -> None:
        """Nobody writes beside us from here on."""
        self.abandon()
        if self._heart is not None:
            await asyncio.wait([self._heart])


def json_response(
    status: int, payload: Any, more: Sequence[tuple[bytes, bytes]] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A small whole answer as two ASGI messages."""
    body = orjson.dumps(payload)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    start = {"type": "http.response.start", "status": status, "headers": headers}
    return start, {"type": "http.response.body", "body": body}
