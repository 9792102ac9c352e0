"""One HTTP response: begun as late as clients allow, so that most faults still have a status of their own.

A reply's end is written when it is complete and stored. Until then a stream tells what is sure of it, every
``tell_s`` at most; where there is nothing to tell the client sees silence, and after ``early_s`` it gets the headers
and, from then on, something that keeps it waiting: the protocol's own keep-alive in a stream, white space before a JSON
body. A fault after that is the protocol's error event, or a closed connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import orjson
from starlette.types import Send

from lightning_lab.gateway.errors import Fault
from lightning_lab.gateway.protocols.wire import Stream

_SOCKET_BUFFER = 2**15
"""A body up to this size is handed to the kernel at once."""


class Progress(Protocol):
    """What becomes sure of a reply."""

    def look(self) -> bool:
        """Whether there is more of it than was told."""
        ...

    def events(self) -> bytes:
        """Its events, made right before they are written: they are numbered in the order of their making."""
        ...


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
        tell_s: float,
    ) -> None:
        self._send = send
        self._error = error
        self._gone = gone
        self._early_s = early_s
        self._beat_s = beat_s
        self._tell_s = tell_s
        self._stream: Stream | None = None
        self._progress: Progress | None = None
        self._expected_at = 0.0
        self._started = False
        self._opened = False
        self._unsent = b""
        """Made, and not written for sure: its writing may be cancelled while it waits for a slow reader."""
        self._heart: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def expect(self, stream: Stream | None, progress: Progress | None = None) -> None:
        """The request is sound and an answer will come, as events or as one JSON body: keep the client waiting."""
        self._stream = stream
        self._progress = progress
        loop = asyncio.get_running_loop()
        self._expected_at = loop.time()
        first = self._early_s if progress is None else min(self._early_s, self._tell_s)
        self._alarm = loop.call_later(first, self._start_heart)

    async def finish(self, reply: Callable[[], bytes]) -> bool:
        """Write the reply. True when the last byte went out before a disconnect was seen.

        ``reply`` is called when nothing else will be written: events are numbered in the order of their making.
        """
        await self._stop_heart()
        opening = self._stream.opening() if self._stream is not None and not self._opened else b""
        body = self._unsent + opening + reply()
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
            await self._send({"type": "http.response.body", "body": self._unsent + self._stream.failure(fault)})

    def abandon(self) -> None:
        """Write nothing more. Idempotent."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None  # it knows us: garbage that only a collection would find
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
        loop = asyncio.get_running_loop()
        last = self._expected_at
        while True:
            progress = self._progress if self._progress is not None and self._progress.look() else None
            patience = self._beat_s if self._opened else self._early_s
            if progress is not None or loop.time() >= last + patience:
                await self._tell(progress)
                last, patience = loop.time(), self._beat_s
            left = last + patience - loop.time()
            await asyncio.sleep(left if self._progress is None else min(left, self._tell_s))

    async def _tell(self, progress: Progress | None) -> None:
        """Events of the reply, or a sign of life; before the first of them, headers and the stream's opening."""
        if self._stream is None:
            self._unsent = b" "
        elif not self._opened:
            self._unsent = self._stream.opening()
        elif progress is None:
            self._unsent = self._stream.beat()
        self._opened = True
        if progress is not None:
            self._unsent += progress.events()
        if not self._started:
            await self._begin(200, None)
        await self._write(self._unsent)
        self._unsent = b""

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
