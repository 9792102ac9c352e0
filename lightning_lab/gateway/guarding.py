"""A connection to whoever may not even speak HTTP: what is no request is answered in JSON, and nothing waits for ever.

A head may be so long and take so long; the bytes of a body may be so far apart. Who asks for another protocol is
refused: the parser would take the body for that protocol's words.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lightning_lab.gateway.errors import Fault
from lightning_lab.gateway.protocols.wire import error_body

_HEAD_BYTES = 64 * 1024
_HEAD_S = 60.0
_SILENCE_S = 60.0
_LOOK_S = 15.0
_STATUS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class Guarded(HttpToolsProtocol):
    """One connection; its times are looked at now and then, so that a request costs nothing for them."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head = self._in_request = True
        self._refused = False
        self._head_bytes = 0
        self._begun_at = self._heard_at = self.loop.time()
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch = self.loop.call_later(_LOOK_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self._refuse(431, "header_too_large", f"The head of the request is longer than {_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self._in_head = self._in_request = True
        self._head_bytes, self._begun_at = 0, self._heard_at
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.parser.should_upgrade():
            message = "This gateway speaks HTTP/1.1 and nothing else; send the request without an Upgrade header."
            self._refuse(400, "upgrade_not_supported", message)
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_request = False
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._refuse(400, "invalid_http", "What was sent is no valid HTTP/1.1 request.")

    def _unsupported_upgrade_warning(self) -> None:
        """Whoever asked for it was told."""

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        now = self.loop.time()
        late = self._in_request and now - self._heard_at > _SILENCE_S
        if self._in_head and now - self._begun_at > _HEAD_S:
            self._refuse(408, "request_timeout", f"The head of the request was not there after {_HEAD_S:g} s.")
        elif late:
            self.transport.close()  # an answer may be on its way already
        else:
            self._watch = self.loop.call_later(_LOOK_S, self._look)

    def _refuse(self, status: int, code: str, message: str) -> None:
        if self._refused:
            return
        self._refused = True
        body = orjson.dumps(error_body(Fault(status, code, message)))
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            % (status, _STATUS[status], len(body))
            + body
        )
        self.transport.close()
