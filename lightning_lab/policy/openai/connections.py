"""Connections to an endpoint, kept open between calls: one pool per event loop, closed with it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import threading
from collections.abc import Mapping
from functools import partial
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai.connection import Connection

_CONNECT_S = 30.0
_IDLE_S = 15.0
"""After this a server may have closed a connection; a new one costs less than a request that is lost."""
_PORTS = {"http": 80, "https": 443}


class Connections:
    """Thread-safe. ``silence_s``: how long an open answer may bring nothing."""

    def __init__(self, base_url: str, headers: Mapping[str, str], silence_s: float) -> None:
        self._server = urlsplit(base_url)
        self._proxy = _proxy(self._server)
        self._secure = ssl.create_default_context() if self._server.scheme == "https" else None
        self._silence_s = silence_s
        named = {"Host": self._server.netloc, "Accept-Encoding": "identity", **headers}
        if self._proxy is not None and self._secure is None:
            named |= _proxy_headers(self._proxy)
        path = self._server.path
        if " " in path or not all(text.isascii() and text.isprintable() for text in (path, *named.values())):
            raise PolicyError(
                "base_url or api_key has a character that HTTP cannot carry, such as a line break or an accent. "
                "Check both; in an address, write it as %XX."
            )
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._closed = False

    async def ask(self, method: str, path: str, body: bytes = b"", *, beside: bool = False) -> Connection:
        """The connection over which an answer has begun: give it back with `release`, or `close` it.

        ``path`` is below the base URL, or ``beside`` its ``/v1``. Raises `OSError`, and `PolicyError` after `close`.
        """
        pool = self._pool()
        connection = pool.idle() or await self._connect(pool)
        head = f"{method} {self._target(path, beside)} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        try:
            await connection.ask(head.encode("latin-1") + body)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """End all connections; open replies break off. Idempotent, from any thread."""
        with self._lock:
            self._closed = True
            for loop, pool in self._pools.items():
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the keeper ended with it
                    loop.call_soon_threadsafe(pool.keeper.cancel)

    def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise PolicyError("This policy is closed. Make a new one.")
            pool = self._pools.get(loop)
            if pool is None or pool.keeper.done():
                pool = self._pools[loop] = _Pool(loop)
            return pool

    def _target(self, path: str, beside: bool) -> str:
        target = (self._server.path.removesuffix("/v1") if beside else self._server.path) + path
        return f"http://{self._server.netloc}{target}" if self._proxy and not self._secure else target

    async def _connect(self, pool: _Pool) -> Connection:
        make = partial(Connection, self._silence_s, pool.free)
        async with asyncio.timeout(_CONNECT_S):
            if self._proxy is not None and self._secure is not None:
                connection = await self._tunnel(make, self._secure)
            else:
                host, port = _address(self._proxy or self._server)
                _, connection = await pool.loop.create_connection(make, host, port, ssl=self._secure)
        pool.open.add(connection)
        return connection

    async def _tunnel(self, make: partial[Connection], secure: ssl.SSLContext) -> Connection:
        """To the server through its proxy, which sees nothing of what is said."""
        assert self._proxy is not None
        loop = asyncio.get_running_loop()
        host, port = _address(self._server)
        named = {"Host": f"{host}:{port}", **_proxy_headers(self._proxy)}
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        transport, asked = await loop.create_connection(partial(_Tunnel, loop), *_address(self._proxy))
        try:
            transport.write(f"CONNECT {host}:{port} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
            await asked.opened
            connection = make()
            inner = await loop.start_tls(transport, connection, secure, server_hostname=host)
        except BaseException:
            transport.abort()
            raise
        assert inner is not None
        connection.connection_made(inner)
        return connection


class _Pool:
    """The connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.open: set[Connection] = set()
        self._idle: list[Connection] = []
        self.keeper = loop.create_task(self._keep())

    def idle(self) -> Connection | None:
        """The one that was used last, if there is any."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and self.loop.time() - connection.idle_since < _IDLE_S:
                return connection
            connection.close()
            self.open.discard(connection)
        return None

    def free(self, connection: Connection) -> None:
        """It may be used again, or is of no more use."""
        if connection.usable:
            self._idle.append(connection)
        else:
            self.open.discard(connection)

    async def _keep(self) -> None:
        """Wait to be cancelled: a loop does that when it ends, and then there is still time to close. (A loop that is
        dropped instead leaves nothing that could be closed.)"""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            for connection in list(self.open):
                connection.close()
            await asyncio.sleep(0)  # lets the transports end
            raise


class _Tunnel(asyncio.Protocol):
    """The answer of a proxy that was asked for a tunnel."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.opened: asyncio.Future[None] = loop.create_future()
        self._said = b""

    def data_received(self, data: bytes) -> None:
        self._said += data
        if b"\r\n\r\n" not in self._said or self.opened.done():
            return
        status = self._said.partition(b"\r\n")[0].decode("latin-1")
        if status.split()[1:2] == ["200"]:
            self.opened.set_result(None)
        else:
            self.opened.set_exception(ConnectionError(f"the proxy refuses: {status}"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("closed by the proxy"))


def _address(parts: SplitResult) -> tuple[str, int]:
    return parts.hostname or "", parts.port or _PORTS[parts.scheme]


def _proxy(server: SplitResult) -> SplitResult | None:
    """What the environment says (``HTTPS_PROXY``, ``NO_PROXY`` …), asked once. Raises `PolicyError`."""
    found = None if proxy_bypass(server.netloc) else getproxies().get(server.scheme)
    if not found:
        return None
    proxy = urlsplit(found if "://" in found else f"http://{found}")
    if proxy.scheme != "http":
        raise PolicyError(f"A proxy is reached by http://…, not by {proxy.scheme}://… (see the environment's *_PROXY).")
    return proxy


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    said = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(said).decode()}"}
