"""Connections to an endpoint, kept open between calls: one pool per event loop, closed with it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import aiohttp

from lightning_lab.policy.base import PolicyError

_CONNECT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Pool:
    session: aiohttp.ClientSession
    keeper: asyncio.Task[None]


class Sessions:
    """Thread-safe. ``silence_s``: how long an open answer may bring nothing."""

    def __init__(self, base_url: str, silence_s: float) -> None:
        self._base_url = base_url
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silence_s)
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._closed = False

    def of_this_loop(self) -> aiohttp.ClientSession:
        """Raises `PolicyError` after `close`."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise PolicyError("This policy is closed. Make a new one.")
            pool = self._pools.get(loop)
            if pool is None or pool.keeper.done():
                pool = self._pools[loop] = self._open(loop)
            return pool.session

    def close(self) -> None:
        """End all connections; open replies break off. Idempotent, from any thread."""
        with self._lock:
            self._closed = True
            for loop, pool in self._pools.items():
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the keeper ended with it
                    loop.call_soon_threadsafe(pool.keeper.cancel)

    def _open(self, loop: asyncio.AbstractEventLoop) -> _Pool:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # how many calls run at one time is decided elsewhere
            timeout=self._timeout,
            proxy=_proxy(self._base_url),
            auto_decompress=True,
        )
        return _Pool(session, loop.create_task(_keep(session)))


def _proxy(base_url: str) -> str | None:
    """What the environment says (``HTTPS_PROXY``, ``NO_PROXY`` …), asked once: aiohttp would ask for every request."""
    parts = urlsplit(base_url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


async def _keep(session: aiohttp.ClientSession) -> None:
    """Wait to be cancelled: a loop does that when it ends, and then there is still time to close."""
    async with session:
        await asyncio.Event().wait()
