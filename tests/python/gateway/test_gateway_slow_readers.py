"""A thousand clients that do not read: nothing hangs, nothing is lost, and everybody else is served."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gateway_lab
import pytest
from gateway_lab import Lab, ScriptedPolicy, chat_body

from lightning_lab.gateway import Gateway
from lightning_lab.records import Ids, Message

READERS = 1000
LONG = "x" * 120_000


class Verbose(ScriptedPolicy):
    """One id says it all: long answers that cost no memory as ids."""

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        text = self.decode(ids)
        return Message(role="assistant", content=LONG if text.startswith("L") else text)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of each connection are open here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4 * READERS), hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def narrow_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system keeps little of what nobody reads, on the gateway's side as well."""
    listen = Gateway._listen

    def narrow(self: Gateway) -> socket.socket:
        listener = listen(self)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    monkeypatch.setattr(Gateway, "_listen", narrow)


class Reader:
    """A client with a narrow pipe that asks, and does not read until it is told to."""

    def __init__(self, lab: Lab) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)
        body = json.dumps(chat_body("L", stream=True)).encode()
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nauthorization: Bearer "
            + f"{lab.access.key}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self._port = int(lab.gateway.url.rpartition(":")[2])

    async def ask(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", self._port))
        await loop.sock_sendall(self._socket, self._request)

    async def read(self) -> bytes:
        loop, parts = asyncio.get_running_loop(), []
        while part := await loop.sock_recv(self._socket, 65536):
            parts.append(part)
        self._socket.close()
        return b"".join(parts)

    def leave(self) -> None:
        self._socket.close()


async def test_a_thousand_readers_that_do_not_read(make_lab, monkeypatch, many_files, narrow_pipes):
    monkeypatch.setattr(gateway_lab, "make_policy", Verbose)
    lab: Lab = make_lab(lambda prompt: "L" if prompt.startswith("[user]L") else "short")
    readers = [Reader(lab) for _ in range(READERS)]
    await asyncio.gather(*(reader.ask() for reader in readers))
    await lab.until(lambda: len(lab.policy.sampled) == READERS, 60)
    await lab.until(lambda: lab.gateway.admission.in_flight == 0, 60)
    assert not any(call.delivered for call in lab.calls()), "the pipes are too wide to test anything"
    report = await asyncio.to_thread(lab.gateway.pause, deadline_s=10)
    assert (report.in_flight, report.aborted, report.left) == (0, 0, 0)
    lab.gateway.resume()
    quick = lab.open("r-2")
    async with lab.client(quick) as client:
        assert (await client.post("/chat/completions", json=chat_body("S"))).json()["choices"][0]["message"]["content"]
    gone, staying = readers[:100], readers[100:]
    for reader in gone:
        reader.leave()
    said = await asyncio.gather(*(reader.read() for reader in staying))
    assert all(answer.count(b"x") >= len(LONG) and b"data: [DONE]" in answer for answer in said)
    await lab.until(lambda: sum(call.delivered for call in lab.calls()) == len(staying), 30)
    assert len(lab.calls()) == READERS
    await asyncio.to_thread(lab.gateway.close_rollout, "r-1")
    assert sum(call.delivered for call in lab.calls()) == len(staying)
