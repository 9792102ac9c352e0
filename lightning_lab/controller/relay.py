"""Bytes passed on between a socket and another: the one way out of a sandbox, which leads to the gateway.

Outside, the controller listens on a Unix socket and calls the gateway; inside, a forwarder listens on the sandbox's own
loopback and calls that Unix socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_CHUNK = 1 << 16


async def serve_gateway(path: Path, url: str) -> asyncio.Server:
    """Listen at ``path``, however long, for sandboxes, on behalf of the gateway at ``url``."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    folder = os.open(path.parent, os.O_PATH)
    try:  # a socket's address holds 107 bytes, and a folder of runs may lie deeper
        address = f"/proc/self/fd/{folder}/{path.name}"
        return await asyncio.start_unix_server(_passing_on(lambda: asyncio.open_connection(host, port)), address)
    finally:
        os.close(folder)


async def forward(listener: socket.socket, path: str) -> None:
    """Pass on whatever connects to ``listener`` to the Unix socket ``path``; never ends."""
    server = await asyncio.start_server(_passing_on(lambda: asyncio.open_unix_connection(path)), sock=listener)
    await server.serve_forever()


def _passing_on(connect: Callable[[], Awaitable[Streams]]) -> Callable[..., Awaitable[None]]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = None
        try:
            far = await connect()
            await asyncio.gather(_pump(reader, far[1]), _pump(far[0], writer))
        except OSError:  # either side went away: then the other is to notice
            pass
        finally:
            for each in (writer, *([far[1]] if far else [])):
                each.close()

    return handle


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the end, which is passed on too."""
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
