"""The routes: rollouts, events, models, the proxy and its pause."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lightning_lab.gateway.agl.audit import Audit
from lightning_lab.gateway.agl.events import triplet
from lightning_lab.gateway.agl.forwarding import Forwarding
from lightning_lab.gateway.agl.pausing import Pausing
from lightning_lab.gateway.agl.rollouts import AglRollouts, RefusedRequestError
from lightning_lab.gateway.agl.wire import (
    Model,
    NewEvent,
    NewRollout,
    PauseAsked,
    PauseState,
    RolloutDetail,
    RolloutPatch,
    State,
    TerminalPage,
    WireEvent,
    WireRollout,
)
from lightning_lab.gateway.app import BODY_LIMIT, read_body
from lightning_lab.gateway.auth import check_host, served_hosts
from lightning_lab.gateway.errors import Fault

_PROXY = "/proxy/rollout/{rollout_id}/attempt/{attempt_id}/mode/{mode}/openai/v1/{path:path}"
_MODES = ("train", "val")
_ANY_HOST = ("0.0.0.0", "::")


Report = Callable[[str, str, Sequence[tuple[bytes, bytes]], int], None]
"""Told of a request without the key: method, path, headers, status."""


def create_agl_app(
    rollouts: AglRollouts, forwarding: Forwarding, pausing: Pausing, *, key: str, host: str, report: Report
) -> Audit:
    """The application; every route but ``/healthz`` needs the key. ``report`` may block."""
    hosts = None if host in _ANY_HOST else served_hosts(host)
    return Audit(_Door(agl_routes(rollouts, forwarding, pausing), key, hosts, report), rollouts, key)


def agl_routes(rollouts: AglRollouts, forwarding: Forwarding, pausing: Pausing) -> FastAPI:
    """All routes, as they describe themselves at ``/openapi.json``; open to everybody."""
    app = FastAPI(title="Agent Lightning v1.0, served by Lightning Lab", docs_url=None, redoc_url=None)
    app.include_router(_rollout_routes(rollouts), prefix="/api")
    app.include_router(_model_routes(), prefix="/api")
    app.include_router(_pause_routes(pausing), prefix="/proxy")
    app.router.routes.append(Route(_PROXY, _Proxy(rollouts, forwarding), methods=["GET", "POST", "HEAD"]))
    app.add_exception_handler(RefusedRequestError, _refuse)
    app.add_exception_handler(Fault, _refuse)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app


def _rollout_routes(rollouts: AglRollouts) -> APIRouter:
    router = APIRouter()

    @router.post("/rollouts", status_code=201)
    async def create(body: list[NewRollout]) -> list[WireRollout]:
        return await rollouts.create(body)

    @router.get("/rollouts")
    async def listed(state_in: Annotated[list[State], Query()], limit: int = 500) -> list[WireRollout]:
        return rollouts.listed(set(state_in), limit)

    @router.get("/rollouts/terminal")
    async def ended(after: int = 0, limit: int = 1000) -> TerminalPage:
        return rollouts.ended(after, limit)

    @router.get("/rollouts/{rollout_id}")
    async def detail(rollout_id: str) -> RolloutDetail:
        entry = rollouts.entry(rollout_id)
        return RolloutDetail(rollout=entry.wire, attempts=list(entry.attempts))

    @router.patch("/rollouts/{rollout_id}")
    async def patch(rollout_id: str, body: RolloutPatch) -> WireRollout:
        if body.status is None:
            return rollouts.entry(rollout_id).wire
        return await rollouts.patch(rollout_id, body.status)

    @router.delete("/rollouts/{rollout_id}", status_code=204)
    async def remove(rollout_id: str) -> None:
        await rollouts.remove(rollout_id)

    @router.post("/rollouts/{rollout_id}/attempt/{attempt_id}/events")
    async def post(rollout_id: str, attempt_id: str, body: NewEvent) -> WireEvent:
        return await rollouts.post(rollout_id, attempt_id, body)

    @router.get("/rollouts/{rollout_id}/events")
    async def events(rollout_id: str, event_type: str | None = None, format: str | None = None) -> list[WireEvent]:
        found = await rollouts.events(rollout_id)
        if event_type is not None:
            found = [event for event in found if event.event_type == event_type]
        return [triplet(event) for event in found] if format == "triplet" else found

    return router


def _model_routes() -> APIRouter:
    """Trainers there register their engines; here the lab's policy answers, so that there is nothing to keep."""
    router = APIRouter()

    @router.post("/models", status_code=201)
    async def register(body: list[Model]) -> list[Model]:
        return body

    @router.delete("/models")
    async def forget() -> dict[str, str]:
        return {"status": "ok"}

    return router


def _pause_routes(pausing: Pausing) -> APIRouter:
    router = APIRouter()

    @router.post("/pause")
    async def pause(body: PauseAsked) -> PauseState:
        return await pausing.pause(body)

    @router.post("/resume")
    async def resume() -> PauseState:
        return await pausing.resume()

    @router.get("/state")
    async def state() -> PauseState:
        return pausing.state

    return router


class _Proxy:
    """Model calls of agents, in every protocol that the gateway speaks."""

    def __init__(self, rollouts: AglRollouts, forwarding: Forwarding) -> None:
        self._rollouts = rollouts
        self._forwarding = forwarding

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["path_params"]
        if asked["mode"] not in _MODES:
            raise RefusedRequestError(404, f"Unsupported proxy mode: {asked['mode']}")
        access = self._rollouts.access(asked["rollout_id"], asked["attempt_id"])
        body = await read_body(scope, receive, BODY_LIMIT)
        if body is not None:
            await self._forwarding.relay(access, asked["path"], scope, body, receive, send)


class _Door:
    """Who may come in: everybody with the key."""

    def __init__(self, app: ASGIApp, key: str, hosts: frozenset[str] | None, report: Report) -> None:
        self._app = app
        self._key = key.encode()
        self._hosts = hosts
        self._report = report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refusal(scope) if scope["type"] == "http" else None
        if refused is not None and refused.status_code == 401:
            await asyncio.to_thread(self._report, scope["method"], scope["path"], list(scope["headers"]), 401)
        await (refused or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        try:
            if self._hosts is not None:
                check_host(scope["headers"], self._hosts)
        except Fault as fault:
            return _answer(fault.status, fault.message)
        if scope["path"] != "/healthz" and not self._has_key(scope):
            return _answer(401, "Invalid or missing API key")
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > BODY_LIMIT:
            return _answer(413, f"The request body is larger than {BODY_LIMIT} bytes.")
        return None

    def _has_key(self, scope: Scope) -> bool:
        given = dict(scope["headers"])
        bearer = given.get(b"authorization", b"").removeprefix(b"Bearer ")
        return any(hmac.compare_digest(one, self._key) for one in (bearer, given.get(b"x-api-key", b"")))


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, Fault):
        return _answer(error.status, error.message)
    assert isinstance(error, RefusedRequestError)
    return _answer(error.status, error.detail)


def _answer(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status)
