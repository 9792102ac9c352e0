"""Who used the lab's key for what: every control request is an event of the run, with its outcome, never with the key.

Events of kind ``control``: ``method``, ``route``, ``status`` of the answer (0: broken off), ``client`` (its address),
``agent`` (what it calls itself) and ``count``. What changes something is one event each. Controllers ask for
the queue every second, and strangers may knock without end: of equal reads and equal refusals the first is an event,
then one a minute says how many there were. Model calls are recorded as calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightning_lab.gateway.agl.rollouts import AglRollouts

_EVERY_S = 60.0
_MOST_KINDS = 256
"""Equal requests that are counted together; beyond that the oldest are told of."""
_LONGEST = 200
_READS = ("GET", "HEAD")
_CALLS = "/proxy/rollout/"
_REFUSED = (401, 403)


@dataclass(slots=True)
class _Counted:
    """Equal requests since the last event about them."""

    data: Mapping[str, Any]
    subject: str
    told_at: float
    count: int = 0


class Audit:
    """Around the routes. Belongs to one event loop, but for `close`."""

    def __init__(
        self, app: ASGIApp, rollouts: AglRollouts, key: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._rollouts = rollouts
        self._key = key
        self._now = now
        self._counted: dict[tuple[Any, ...], _Counted] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_CALLS):
            await self._app(scope, receive, send)
            return
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            self._note(scope, status)

    def close(self) -> None:
        """Tell what was only counted so far."""
        counted, self._counted = self._counted, {}
        for one in counted.values():
            self._tell(one)

    def _note(self, scope: Scope, status: int) -> None:
        agent = dict(scope["headers"]).get(b"user-agent", b"").decode("latin-1")
        data = {
            "method": scope["method"],
            "route": self._shown(scope["path"]),
            "status": status,
            "client": (scope.get("client") or ("",))[0],
            "agent": self._shown(agent),
        }
        subject = self._shown(scope.get("path_params", {}).get("rollout_id", ""))
        if status in _REFUSED:
            self._count(_Counted({**data, "route": ""}, "", self._now()))
        elif scope["method"] in _READS:
            self._count(_Counted(data, subject, self._now()))
        else:
            self._tell(_Counted(data, subject, 0.0, 1))

    def _count(self, one: _Counted) -> None:
        key = (one.subject, *one.data.values())
        known = self._counted.get(key)
        if known is None:
            self._tell(_Counted(one.data, one.subject, 0.0, 1))
            self._counted[key] = one
            if len(self._counted) > _MOST_KINDS:
                self._tell(self._counted.pop(next(iter(self._counted))))
            return
        known.count += 1
        if one.told_at - known.told_at >= _EVERY_S:
            self._tell(known)
            known.count, known.told_at = 0, one.told_at

    def _tell(self, one: _Counted) -> None:
        if one.count:
            self._rollouts.note("control", one.subject, {**one.data, "count": one.count})

    def _shown(self, text: str) -> str:
        """As much as a record needs, without the key."""
        return text.replace(self._key, "(key)").encode("utf-8", "replace").decode()[:_LONGEST]
