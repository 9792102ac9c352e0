"""An agent's model call goes on to the gateway with its rollout's own key; the answer comes back as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import aiohttp
from starlette.types import Receive, Scope, Send

from lightning_lab.gateway.auth import Access

_OWN = frozenset(
    {b"authorization", b"x-api-key", b"api-key", b"host", b"content-length", b"connection", b"accept-encoding",
     b"transfer-encoding", b"x-lightning-lab-rollout"}
)  # fmt: skip
"""Headers of the agent's connection to us, and its key: they end here."""
_BACK = ("content-type", "cache-control", "retry-after", "x-should-retry", "allow")
_CONNECT_S = 10.0


class Forwarding:
    """Open it on the event loop that serves; a client that disconnects cancels its call."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),  # the gateway decides how long
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def relay(self, access: Access, path: str, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Answer one request by the gateway's answer. Where that breaks off, so does ours."""
        relaying = asyncio.create_task(self._relay(access, path, scope, body, send))
        watching = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait((relaying, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            relaying.cancel()  # closes the connection to the gateway; harmless when it is done
            await asyncio.wait((relaying, watching))
        if not relaying.cancelled() and (error := relaying.exception()) is not None:
            raise error

    async def _relay(self, access: Access, path: str, scope: Scope, body: bytes, send: Send) -> None:
        assert self._session is not None
        query = scope["query_string"].decode("latin-1")
        url = f"{access.url}/v1/{path}" + (f"?{query}" if query else "")
        headers = _passed_on(scope["headers"]) | {"Authorization": f"Bearer {access.key}"}
        async with self._session.request(scope["method"], url, data=body or None, headers=headers) as answer:
            back = [(name.encode(), answer.headers[name].encode("latin-1")) for name in _BACK if name in answer.headers]
            await send({"type": "http.response.start", "status": answer.status, "headers": back})
            try:
                async for part in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except aiohttp.ClientError:
                return  # the gateway broke off to say that the answer is not complete; unfinished, ours says so too
            await send({"type": "http.response.body", "body": b""})


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name not in _OWN}


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
