"""HTTP/1.1 to one server, over connections that are kept open: one request at a time on each.

`httptools` reads what comes; a general client would spend more time on a call than the rest of the gateway does.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import cast

import httptools

_MOST_WAITING = 1 << 16
"""Bytes of an answer that wait to be read before the server is made to wait."""
LONGEST_PART = 1 << 15
"""Bytes of an answer that are read at once: a few milliseconds of an event loop's time."""
COMPRESSED = frozenset({"gzip", "x-gzip", "deflate"})
"""How a server may compress what it was asked not to."""
_EITHER = zlib.MAX_WBITS | 32
"""gzip and deflate tell by themselves which they are."""


class Connection(asyncio.Protocol):
    """One connection, and the answer that comes over it. ``freed`` is called when it may be used again, and
    when it never may.

    Errors are `OSError`: `TimeoutError` where nothing came for ``silence_s``, else `ConnectionError`.
    """

    def __init__(self, silence_s: float, freed: Callable[[Connection], None]) -> None:
        self.status = 0
        """Of the answer; 0 before it has begun."""
        self.headers: dict[str, str] = {}
        """By lower-case name."""
        self.idle_since = 0.0
        self._silence_s = silence_s
        self._freed = freed
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._waiting = 0
        self._inflate: zlib._Decompress | None = None
        """Where the server compresses its answer, which nobody asks it to."""
        self._begun = self._complete = self._lasts = True
        self._error: OSError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._heard_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._complete and self._error is None

    @property
    def at_end(self) -> bool:
        """Whether the whole answer was read."""
        return self._complete and not self._parts

    async def ask(self, request: bytes) -> None:
        """Send a request, and wait until the head of its answer is there."""
        assert self._transport is not None
        self._begun = self._complete = False
        self.status, self.headers = 0, {}
        self._heard_at = self._loop.time()
        if self._alarm is None:  # else that of the request before looks after this one, too
            self._alarm = self._loop.call_later(self._silence_s, self._check)
        self._transport.write(request)
        while not self._begun:
            await self._wait()

    async def part(self) -> bytes:
        """What has come of the body and was not read yet, `LONGEST_PART` or a little more of it; empty at its end."""
        while not self._parts:
            if self._complete:
                return b""
            await self._wait()
        count = size = 0
        while count < len(self._parts) and size < LONGEST_PART:
            size += len(self._parts[count])
            count += 1
        part = b"".join(self._parts[:count])
        del self._parts[:count]
        self._waiting -= size
        if self._waiting < _MOST_WAITING <= self._waiting + size:
            self._read_on(True)
        return part

    def release(self) -> None:
        """Done with this answer: the connection serves the next request, unless something is still to come."""
        if self.at_end and self._error is None and self._lasts:
            self.idle_since = self._loop.time()
            self._freed(self)
        else:
            self.close()

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._fail(ConnectionError("hung up"))

    # -- what the event loop calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"what came is no HTTP: {error}"))
        if self._waiting >= _MOST_WAITING:
            self._read_on(False)
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        framed = {"content-length", "transfer-encoding"} & self.headers.keys()
        if self._begun and self.status and not framed and error is None:
            self._complete = True  # such an answer ends with its connection
        reason = error if isinstance(error, OSError) else ConnectionError("closed by the server")
        self._fail(reason)

    # -- what the parser calls -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            self._fail(ConnectionError("the server answers unasked"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # more will come
            self.headers = {}
        elif not self._begun:
            self.status, self._begun = status, True
            deflated = self.headers.get("content-encoding", "").strip().lower() in COMPRESSED
            self._inflate = zlib.decompressobj(_EITHER) if deflated else None

    def on_body(self, body: bytes) -> None:
        if self._inflate is not None:
            body = self._inflated(self._inflate, body)
        if body and not self._complete:
            self._parts.append(body)
            self._waiting += len(body)

    def on_message_complete(self) -> None:
        if self._begun and self._error is None:  # what failed in its body is not whole
            self._lasts = self._parser.should_keep_alive()
            self._complete = True

    # ------------------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until something has come. Raises what went wrong."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _inflated(self, inflate: zlib._Decompress, body: bytes) -> bytes:
        try:
            return inflate.decompress(body)
        except zlib.error as error:
            self._fail(ConnectionError(f"what came is not compressed as it says: {error}"))
            return b""

    def _read_on(self, more: bool) -> None:
        if self._transport is None or self._error is not None:  # a closed transport refuses both
            return
        if more:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check(self) -> None:
        """Whether nothing came for too long, while somebody waits for it."""
        self._alarm = None
        if self._complete:
            return
        left = self._heard_at + self._silence_s - self._loop.time()
        if left <= 0 and self._waiter is not None:
            self._fail(TimeoutError(f"nothing came for {self._silence_s:g} s"))
        else:
            self._alarm = self._loop.call_later(max(left, 0.1), self._check)

    def _fail(self, error: OSError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._alarm is not None:
            self._alarm.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._wake()
        self._freed(self)
