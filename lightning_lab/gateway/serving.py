"""How the gateway's routes are served, whichever they are: silently, and to nobody but their callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Scope

from lightning_lab.gateway.guarding import Guarded
from lightning_lab.gateway.joining import Joining

_KEEP_ALIVE_S = 120
"""Longer than clients keep idle connections, so that none is closed while a request is on its way."""


def server_config(app: ASGIApp) -> uvicorn.Config:
    """No log lines into a cell, no start-up protocol, no header that says who serves, no trust in a proxy's headers."""
    return uvicorn.Config(
        app,
        http=_Protocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
    )


def on_disconnect(scope: Scope, tell: Callable[[], None]) -> Callable[[], None]:
    """Have ``tell`` called when the client of a request goes away. Returns what ends that.

    Without a task that waits for it, which would cost a call more than its JSON does.
    """
    protocol: _Protocol = scope["extensions"][_EXTENSION]
    return protocol.watch(tell)


_EXTENSION = "lightning_lab.protocol"


class _Protocol(Guarded):
    """A connection that tells of its end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._watchers: list[Callable[[], None]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Joining(transport, self.loop)))

    def watch(self, tell: Callable[[], None]) -> Callable[[], None]:
        self.flow.resume_reading()  # a large body may have stopped it, and who does not read sees no end
        self._watchers.append(tell)
        if self.transport.is_closing():
            self.loop.call_soon(self._tell)
        return lambda: self._watchers.remove(tell) if tell in self._watchers else None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: self}  # type: ignore[dict-item]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._tell()

    def _tell(self) -> None:
        told, self._watchers = self._watchers, []
        for tell in told:
            tell()
