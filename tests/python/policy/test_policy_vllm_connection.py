"""Requests to a server that closes its connections when it likes, as vLLM's does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.vllm.connection import Connection

ANSWER = b"HTTP/1.1 %d Whatever\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
CLOSES_S = 0.05
"""After an answer: a traceback is logged first."""


async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One answer, and nothing says that it is the last."""
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(ANSWER % (500 if b"/fails" in head else 200))
    await asyncio.sleep(CLOSES_S)
    writer.transport.abort()


@pytest.mark.parametrize("first", ["/fails", "/goes-well"])
@pytest.mark.parametrize("kind", ["socket", "url"])
async def test_no_request_goes_over_a_connection_that_is_about_to_close(tmp_path: Path, kind: str, first: str) -> None:
    if kind == "socket":
        server = await asyncio.start_unix_server(once, tmp_path / "one.sock")
        address = f"unix://{tmp_path / 'one.sock'}"
    else:
        server = await asyncio.start_server(once, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connection = Connection(address, name="one")
    try:
        if first == "/fails":
            with pytest.raises(PolicyError, match="answered /fails with 500"):
                await connection.post(first)
        else:
            await connection.post(first)
        assert await connection.post("/resume") == {}
    finally:
        await connection.close()
        server.close()
