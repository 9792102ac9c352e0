"""The routes: model calls and model lists, under a rollout's own path or at the root."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from lightning_lab.gateway.auth import Grant, Grants, check_host
from lightning_lab.gateway.calltree import identity
from lightning_lab.gateway.capture import Capture
from lightning_lab.gateway.delivery import json_response
from lightning_lab.gateway.errors import Fault, as_fault
from lightning_lab.gateway.exchange import Asked
from lightning_lab.gateway.openapi import document
from lightning_lab.gateway.protocols.chat import Chat
from lightning_lab.gateway.protocols.completions import Completions
from lightning_lab.gateway.protocols.messages import Messages
from lightning_lab.gateway.protocols.messages_stream import error_body as messages_error
from lightning_lab.gateway.protocols.models import claude_model, claude_model_list, model, model_list
from lightning_lab.gateway.protocols.responses import Responses
from lightning_lab.gateway.protocols.wire import Wire, error_body
from lightning_lab.gateway.tamper import Watch

BODY_LIMIT = 32 * 1024 * 1024
"""Bytes of a request body, unless the gateway is told otherwise."""


_BELOW = "/rollout/"


@dataclass(frozen=True, slots=True)
class Service:
    """What the routes work with."""

    capture: Capture
    grants: Grants
    watch: Watch
    hosts: frozenset[str]
    body_limit: int = BODY_LIMIT

    def refusal(self, scope: Scope, fault: Fault) -> Response:
        """The answer to a request that is refused; what it was after is looked at."""
        self.watch.refused(scope["method"], scope["path"], scope["headers"], fault)
        return refusal(scope, fault)


def create_app(service: Service) -> ASGIApp:
    """The gateway as an application. Endpoints read raw bodies: a schema per request would cost more than the call."""
    calls = {
        "/v1/chat/completions": CallRoute(service, Chat()),
        "/v1/responses": CallRoute(service, Responses()),
        "/v1/completions": CallRoute(service, Completions()),
        "/v1/messages": CallRoute(service, Messages()),
    }
    models: list[BaseRoute] = [
        *(Route(path, route) for path, route in calls.items()),
        Route("/v1/messages/count_tokens", CountRoute(service, Messages())),
        Route("/v1/models", ModelsRoute(service)),
        Route("/v1/models/{model:path}", ModelsRoute(service)),
    ]
    below = Router(models, redirect_slashes=False, default=unknown_route)
    open_to_all = [Route("/health", Known({"status": "ok"})), Route("/openapi.json", Known(document()))]
    routes = [Mount("/rollout/{rollout}", below), *open_to_all, *models]
    app = FastAPI(routes=routes, openapi_url=None, redirect_slashes=False)
    app.router.default = unknown_route

    async def refuse(request: HttpRequest, fault: Exception) -> Response:
        assert isinstance(fault, Fault)
        return service.refusal(request.scope, fault)

    app.add_exception_handler(Fault, refuse)
    return Front(app, service, calls)


class Front:
    """What holds for every route: the Host check, HEAD probes, and faults as answers.

    Model calls take the short way: the application's own layers cost an eighth of a call.
    """

    def __init__(self, app: ASGIApp, service: Service, calls: Mapping[str, CallRoute]) -> None:
        self._service = service
        self._routes = app
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            check_host(scope["headers"], self._service.hosts)
            if scope["method"] == "HEAD":
                await _respond(send, 200, {})
            else:
                await self._route(scope)(scope, receive, send)
        except Fault as fault:
            await self._service.refusal(scope, fault)(scope, receive, send)

    def _route(self, scope: Scope) -> ASGIApp:
        path, rollout = scope["path"], None
        if path.startswith(_BELOW):
            rollout, _, rest = path[len(_BELOW) :].partition("/")
            path = "/" + rest
        call = self._calls.get(path)
        if call is None:
            return self._routes
        scope["path_params"] = {"rollout": rollout} if rollout else {}
        return call


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
                asked = Asked(self._wire, grant, who, scope, send, arrived_at)
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


class Known:
    """What anybody may know."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _require(scope, "GET")
        await _respond(send, 200, self._answer)


class _UnknownRoute:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise Fault(404, "unknown_url", f"Unknown request URL: {scope['method']} {scope['path']}.")


unknown_route = _UnknownRoute()


def refusal(scope: Scope, fault: Fault) -> Response:
    """The fault in the shape that the client reads."""
    body = messages_error(fault) if _speaks_anthropic(scope) else error_body(fault)
    response = Response(orjson.dumps(body), fault.status, media_type="application/json")
    response.raw_headers += [(b"x-should-retry", b"true" if fault.retry else b"false"), *fault.headers]
    return response


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


async def _respond(send: Send, status: int, payload: Any) -> None:
    start, body = json_response(status, payload)
    await send(start)
    await send(body)
