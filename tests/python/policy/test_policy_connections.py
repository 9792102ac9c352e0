"""The HTTP client towards model servers: what servers and proxies do to a connection, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai.connections import Connections, _Pool

TLS = Path(__file__).parents[2] / "data" / "tls"
HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """Answers each request with the next of its bytes; the last again and again. ``hang_up`` after each answer."""

    def __init__(self, *answers: bytes, hang_up: bool = False) -> None:
        self.answers = list(answers)
        self.hang_up = hang_up
        self.requests: list[str] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(line for line in head.split("\r\n") if line.lower().startswith("content-length"))
                await reader.readexactly(int(length.partition(":")[2]))
                self.requests.append(head)
                writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
                await writer.drain()
                if self.hang_up:
                    break
        writer.close()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[int]]]:
    servers: list[asyncio.Server] = []

    async def start(handle: Handle, *, secure: bool = False) -> int:
        context = None
        if secure:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "localhost.pem", TLS / "localhost.key")
        servers.append(await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context))
        return int(servers[-1].sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def said(connections: Connections, path: str = "/x") -> tuple[int, bytes]:
    answer = await connections.ask("POST", path, b"{}")
    body = b""
    try:
        while part := await answer.part():
            body += part
    finally:
        answer.release()
    return answer.status, body


async def test_a_connection_serves_call_after_call(serve):
    peer = Peer(HELLO)
    connections = Connections(f"http://127.0.0.1:{await serve(peer)}/v1", {"X-Key": "k"}, 5.0)
    assert [await said(connections) for _ in range(3)] == [(200, b"hello")] * 3
    assert peer.connections == 1
    assert peer.requests[0].startswith("POST /v1/x HTTP/1.1\r\n")
    assert "X-Key: k\r\n" in peer.requests[0]


async def test_answers_at_one_time_have_a_connection_each(serve):
    peer = Peer(HELLO)
    connections = Connections(f"http://127.0.0.1:{await serve(peer)}", {}, 5.0)
    assert await asyncio.gather(*(said(connections) for _ in range(4))) == [(200, b"hello")] * 4
    assert peer.connections == 4


@pytest.mark.parametrize(
    ("answer", "hang_up"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + HELLO, False),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", True),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", True),
    ],
    ids=["chunked", "early-hints", "ends-with-its-connection", "http-1.0"],
)
async def test_every_framing_is_read(serve, answer, hang_up):
    connections = Connections(f"http://127.0.0.1:{await serve(Peer(answer, hang_up=hang_up))}", {}, 5.0)
    assert await said(connections) == (200, b"hello")
    assert await said(connections) == (200, b"hello")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhe",
    ],
)
async def test_a_cut_answer_is_no_whole_one(serve, answer):
    connections = Connections(f"http://127.0.0.1:{await serve(Peer(answer, hang_up=True))}", {}, 5.0)
    with pytest.raises(ConnectionError):
        await said(connections)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n"])
async def test_what_is_no_http_is_said_so(serve, answer):
    connections = Connections(f"http://127.0.0.1:{await serve(Peer(answer))}", {}, 5.0)
    with pytest.raises(ConnectionError, match="no HTTP"):
        await said(connections)


async def test_what_comes_unasked_ends_a_connection(serve):
    peer = Peer(HELLO + HELLO, HELLO)
    connections = Connections(f"http://127.0.0.1:{await serve(peer)}", {}, 5.0)
    assert await said(connections) == (200, b"hello")
    assert await said(connections) == (200, b"hello")
    assert peer.connections == 2


async def test_a_long_answer_waits_for_its_reader(serve):
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 << 20))
        with contextlib.suppress(ConnectionError):
            while sent < 64 << 20:
                writer.write(bytes(1 << 20))
                await writer.drain()
                sent += 1 << 20
        writer.close()

    connections = Connections(f"http://127.0.0.1:{await serve(pour)}", {}, 5.0)
    answer = await connections.ask("POST", "/x")
    for _ in range(200):
        await asyncio.sleep(0)
    assert sent < 32 << 20  # the rest waits at the server
    got = 0
    while part := await answer.part():
        got += len(part)
    answer.release()
    assert got == 64 << 20


def test_a_long_answer_may_be_read_after_its_connection():
    """On the gateway's own kind of event loop, whose closed transports refuse more than asyncio's do."""
    body = bytes(300_000)

    async def read() -> bytes:
        peer = Peer(b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\nconnection: close\r\n\r\n" + body, hang_up=True)
        server = await asyncio.start_server(peer, "127.0.0.1", 0)
        connections = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, 5.0)
        answer = await connections.ask("POST", "/x")
        parts = []
        while part := await answer.part():
            parts.append(part)
            await asyncio.sleep(0.01)  # meanwhile all else comes, and the end
        answer.release()
        server.close()
        return b"".join(parts)

    assert uvloop.run(read()) == body


@pytest.mark.parametrize(("url", "key"), [("http://h/v1", "sk-1\n"), ("http://h/v1", "sk-é"), ("http://h/v 1", "k")])
def test_what_http_cannot_carry_is_told_at_once(url, key):
    with pytest.raises(PolicyError, match="HTTP cannot carry"):
        Connections(url, {"Authorization": f"Bearer {key}"}, 5.0)


async def test_over_tls(serve, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "localhost.pem"))
    connections = Connections(f"https://localhost:{await serve(Peer(HELLO), secure=True)}", {}, 5.0)
    assert await said(connections) == (200, b"hello")


async def test_a_stranger_s_certificate_is_refused(serve):
    connections = Connections(f"https://localhost:{await serve(Peer(HELLO), secure=True)}", {}, 5.0)
    with pytest.raises(ssl.SSLError, match="certificate"):
        await said(connections)


async def test_a_proxy_is_asked_for_the_whole_address(serve, monkeypatch):
    proxy = Peer(HELLO)
    monkeypatch.setenv("http_proxy", f"http://ann:a%40b@127.0.0.1:{await serve(proxy)}")
    assert await said(Connections("http://model.example/v1", {}, 5.0)) == (200, b"hello")
    assert proxy.requests[0].startswith("POST http://model.example/v1/x HTTP/1.1\r\nHost: model.example\r\n")
    assert "Proxy-Authorization: Basic YW5uOmFAYg==\r\n" in proxy.requests[0]


async def test_a_proxy_sees_nothing_of_what_goes_over_tls(serve, monkeypatch):
    peer = Peer(HELLO)
    port = await serve(peer, secure=True)
    asked: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        there, to_there = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, to_there), pump(there, writer), return_exceptions=True)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await source.read(1 << 16):
                sink.write(data)
        sink.close()

    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "localhost.pem"))
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{await serve(tunnel)}")
    connections = Connections(f"https://localhost:{port}/v1", {"Authorization": "Bearer k"}, 5.0)
    assert await said(connections) == (200, b"hello")
    assert await said(connections) == (200, b"hello")
    assert [request.split(b"\r\n")[0] for request in asked] == [f"CONNECT localhost:{port} HTTP/1.1".encode()]
    assert b"Bearer" not in asked[0]
    assert peer.requests[0].startswith("POST /v1/x HTTP/1.1\r\n")
    connections.close()
    await asyncio.sleep(0.05)


async def test_a_proxy_that_refuses_is_told(serve, monkeypatch):
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
        writer.close()

    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{await serve(refuse)}")
    with pytest.raises(ConnectionError, match="407"):
        await said(Connections("https://model.example/v1", {}, 5.0))


def test_a_proxy_of_another_kind_is_told_at_once(monkeypatch):
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(PolicyError, match="socks5"):
        Connections("https://model.example/v1", {}, 5.0)


def test_a_server_without_its_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    async def ask() -> tuple[int, bytes]:
        server = await asyncio.start_server(Peer(HELLO), "127.0.0.1", 0)
        try:
            return await said(Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, 5.0))
        finally:
            server.close()

    assert asyncio.run(ask()) == (200, b"hello")


def test_a_loop_that_is_dropped_takes_its_connections_along(monkeypatch):
    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: complaints.append(told.exc_value))
    loop = asyncio.new_event_loop()
    pool = _Pool(loop)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    del pool, loop
    gc.collect()
    assert complaints == []
