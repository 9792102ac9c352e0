"""Frames between the controller and a supervisor: a length, then that many bytes. JSON or a pickled function."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

_LENGTH = struct.Struct("!Q")


def frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def json_frame(value: Mapping[str, Any]) -> bytes:
    return frame(json.dumps(value).encode())


def receive(sock: socket.socket) -> bytes | None:
    """The next frame of a blocking socket; None at its end."""
    header = _receive_exactly(sock, _LENGTH.size)
    return None if header is None else _receive_exactly(sock, _LENGTH.unpack(header)[0])


async def read_json(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next frame of a stream, as JSON; None at its end."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        value: dict[str, Any] = json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return value


def _receive_exactly(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(size - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)
