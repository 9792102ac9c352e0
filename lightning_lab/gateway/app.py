"""The routes: model calls and model lists, under a rollout's own path or at the root."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from lightning_lab.gateway.auth import Grant, Grants, check_host
from lightning_lab.gateway.calltree import identity
from lightning_lab.gateway.capture import Capture
from lightning_lab.gateway.delivery import json_response
from lightning_lab.gateway.errors import Fault, as_fault
from lightning_lab.gateway.exchange import Asked
from lightning_lab.gateway.protocols.chat import Chat
from lightning_lab.gateway.protocols.completions import Completions
from lightning_lab.gateway.protocols.messages import Messages
from lightning_lab.gateway.protocols.messages_stream import error_body as messages_error
from lightning_lab.gateway.protocols.models import claude_model, claude_model_list, model, model_list
from lightning_lab.gateway.protocols.responses import Responses
from lightning_lab.gateway.protocols.wire import Wire, error_body

BODY_LIMIT = 32 * 1024 * 1024
"""Bytes of a request body, unless the gateway is told otherwise."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes work with."""

    capture: Capture
    grants: Grants
    hosts: frozenset[str]
    body_limit: int = BODY_LIMIT


def create_app(service: Service) -> FastAPI:
    """The gateway as an application. Endpoints read raw bodies: a schema per request would cost more than the call."""
    models: list[BaseRoute] = [
        Route("/v1/chat/completions", CallRoute(service, Chat())),
        Route("/v1/responses", CallRoute(service, Responses())),
        Route("/v1/completions", CallRoute(service, Completions())),
        Route("/v1/messages", CallRoute(service, Messages())),
        Route("/v1/messages/count_tokens", CountRoute(service, Messages())),
        Route("/v1/models", ModelsRoute(service)),
        Route("/v1/models/{model:path}", ModelsRoute(service)),
    ]
    below = Router(models, redirect_slashes=False, default=unknown_route)
    routes = [Mount("/rollout/{rollout}", below), Route("/health", health), *models]
    front = Middleware(Front, service=service)
    app = FastAPI(routes=routes, middleware=[front], openapi_url=None, redirect_slashes=False)
    app.router.default = unknown_route
    return app


class Front:
    """What holds for every route: the Host check, HEAD probes, and faults as answers."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._service = service
        self._routes = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            check_host(scope["headers"], self._service.hosts)
            if scope["method"] == "HEAD":
                await _respond(send, 200, {})
            else:
                await self._routes(scope, receive, send)
        except Fault as fault:
            retry = (b"x-should-retry", b"true" if fault.retry else b"false")
            body = messages_error(fault) if _speaks_anthropic(scope) else error_body(fault)
            await _respond(send, fault.status, body, (retry, *fault.headers))


class CallRoute:
    """One wire protocol's route."""

    def __init__(self, service: Service, wire: Wire) -> None:
        self._service = service
        self._wire = wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_at = time.time()
        _require(scope, "POST")
        grants = self._service.grants
        grant = grants.acquire(path_id=scope["path_params"].get("rollout"), headers=scope["headers"])
        try:
            raw = await read_body(scope, receive, self._service.body_limit)
            if raw is not None:
                who = identity(scope["headers"])
                asked = Asked(self._wire, grant, who, receive, send, arrived_at)
                await self._service.capture.serve(asked, raw)
        finally:
            grants.release(grant)


class CountRoute:
    """How many tokens a request's prompt has, by the policy's own tokenizer."""

    def __init__(self, service: Service, wire: Wire) -> None:
        self._service = service
        self._wire = wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _require(scope, "POST")
        grants = self._service.grants
        grant = grants.acquire(path_id=scope["path_params"].get("rollout"), headers=scope["headers"])
        try:
            raw = await read_body(scope, receive, self._service.body_limit)
            if raw is not None:
                await _respond(send, 200, {"input_tokens": await self._count(grant, raw)})
        finally:
            grants.release(grant)

    async def _count(self, grant: Grant, raw: bytes) -> int:
        try:
            return await self._service.capture.count(self._wire, grant, raw)
        except Exception as error:
            raise as_fault(error) from error


class ModelsRoute:
    """The list of models, or one of them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _require(scope, "GET")
        grants, params = self._service.grants, scope["path_params"]
        grants.release(grants.acquire(path_id=params.get("rollout"), headers=scope["headers"]))
        name = params.get("model")
        one, several = (claude_model, claude_model_list) if _speaks_anthropic(scope) else (model, model_list)
        await _respond(send, 200, one(name) if name else several(self._service.capture.policy.name))


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """The whole body, or None when the client went away. Raises `Fault` 413 and 415.

    A refused body needs no reading here: the server discards what still comes after the answer.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise _too_large(limit)
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise Fault(415, "unsupported_encoding", "Compressed request bodies are not supported; send plain JSON.")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return b"".join(chunks)


class _Health:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _respond(send, 200, {"status": "ok"})


class _UnknownRoute:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise Fault(404, "unknown_url", f"Unknown request URL: {scope['method']} {scope['path']}.")


health = _Health()
unknown_route = _UnknownRoute()


def _speaks_anthropic(scope: Scope) -> bool:
    """Whether the client reads Anthropic's shapes: it says so in a header, or calls a route that only they have."""
    named = any(name == b"anthropic-version" for name, _ in scope["headers"])
    return named or "/v1/messages" in scope["path"]


def _require(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        allow = ((b"allow", method.encode()),)
        raise Fault(405, "method_not_allowed", f"Use {method} for {scope['path']}.", headers=allow)


def _too_large(limit: int) -> Fault:
    return Fault(413, "body_too_large", f"The request body is larger than {limit} bytes.")


async def _respond(send: Send, status: int, payload: Any, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    start, body = json_response(status, payload, headers)
    await send(start)
    await send(body)
