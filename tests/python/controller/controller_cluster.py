"""A stand-in for a Kubernetes API server and what is behind it: real HTTP, real watch streams, made-up pods.

It keeps objects with resource versions, streams what changes, and can fail as real ones do. Each Job gets a pod, whose
status the test says (``behave``), as a kubelet would.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web
from kubernetes import client

MODELS = {"jobs": "V1Job", "secrets": "V1Secret", "networkpolicies": "V1NetworkPolicy"}
Object = dict[str, Any]


def running() -> Object:
    return {"phase": "Running", "containerStatuses": [{"name": "agent", "state": {"running": {}}}]}


def ended(code: int = 0, reason: str = "Completed", message: str = "") -> Object:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    phase = "Failed" if code else "Succeeded"
    return {"phase": phase, "containerStatuses": [{"name": "agent", "state": state}]}


def waiting(reason: str, message: str = "") -> Object:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "agent", "image": "agent:1", "state": state}]}


class ApiServer:
    """``behave`` says what becomes of a pod: statuses in turn. ``faults``: answers given instead, in turn."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = defaultdict(dict)
        self.behave: Callable[[Object], list[Object]] = lambda pod: [running(), ended()]
        self.logs: str | None = "42"
        self.faults: dict[tuple[str, str], list[tuple[int, dict[str, str]]]] = defaultdict(list)
        self.requests: list[tuple[str, str, float]] = []
        self.bodies: list[tuple[str, Object]] = []
        self.lose_answers = 0
        self.drop_events = False
        self._version, self._compacted = 100, 0
        self._history: list[tuple[int, str, str, str]] = []
        self._news = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._port = 0
        self._call(self._listen())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def kubeconfig(self, folder: Path) -> str:
        path = folder / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {"token": "a-token"}}],
                    "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
                }
            )
        )
        return str(path)

    def stop(self) -> None:
        """Away, connections cut; objects stay."""
        self._call(self._runner.cleanup())

    def restart(self) -> None:
        self._call(self._listen())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def compact(self) -> None:
        """What watches had seen so far is forgotten: going on from there gives 410."""
        self._do(self._compact)

    def remove(self, kind: str, name: str) -> None:
        self._do(lambda: self._delete(kind, name))

    def say(self, name: str, status: Object) -> None:
        """A pod's new status."""
        self._do(lambda: self._set_status("pods", name, status))

    def say_job(self, name: str, kind: str, reason: str) -> None:
        condition = {"type": kind, "status": "True", "reason": reason, "message": "said the Job controller"}
        self._do(lambda: self._set_status("jobs", name, {"conditions": [condition]}))

    def only(self, kind: str) -> Object:
        (found,) = self.objects[kind].values()
        return found

    # On its own loop from here on.

    def _do(self, work: Callable[[], None]) -> None:
        async def body() -> None:
            work()

        self._call(body())

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self) -> None:
        application = web.Application(middlewares=[self._middleware])
        names = "/apis/{group}/v1/namespaces/{space}/{kind}"
        for prefix in (names, "/api/v1/namespaces/{space}/{kind}"):
            application.router.add_get(prefix, self._list)
            application.router.add_post(prefix, self._create)
            application.router.add_get(prefix + "/{name}", self._read)
            application.router.add_put(prefix + "/{name}", self._replace)
            application.router.add_delete(prefix + "/{name}", self._remove)
            application.router.add_get(prefix + "/{name}/log", self._log)
        self._runner = web.AppRunner(application, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        kind = request.match_info.get("kind", "")
        self.requests.append((request.method, request.path_qs, time.monotonic()))
        if request.headers.get("Authorization") != "Bearer a-token":
            return _fault(401, "Unauthorized")
        if faults := self.faults[(request.method, kind)]:
            status, headers = faults.pop(0)
            return _fault(status, f"told to answer {status}", headers)
        return await handler(request)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        wanted = dict(part.split("=") for part in request.query.get("labelSelector", "").split(",") if part)
        if request.query.get("watch"):
            return await self._watch(request, kind, wanted)
        items = [each for each in self.objects[kind].values() if _matches(each, wanted)]
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})

    async def _watch(self, request: web.Request, kind: str, wanted: dict[str, str]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        since = int(request.query["resourceVersion"])
        end = self._loop.time() + float(request.query["timeoutSeconds"])
        while self._loop.time() < end:
            if since < self._compacted:
                gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                return response
            for version, its, change, text in self._history:
                if version > since and its == kind and not self.drop_events and _matches(json.loads(text), wanted):
                    await response.write(f'{{"type": "{change}", "object": {text}}}\n'.encode())
            since = self._version
            news = self._news
            try:
                await asyncio.wait_for(news.wait(), end - self._loop.time())
            except TimeoutError:
                break
        return response

    async def _create(self, request: web.Request) -> web.Response:
        kind, body = request.match_info["kind"], await request.json()
        self.bodies.append((kind, body))
        if kind in MODELS:
            kept = client.ApiClient().sanitize_for_serialization(getattr(client, MODELS[kind]).from_dict(body))
            if kept != body:
                return _fault(422, "the object does not fit the published schema")
        name = body["metadata"]["name"]
        if name in self.objects[kind]:
            return _fault(409, f"{kind} {name!r} already exists")
        body["metadata"]["uid"] = f"uid-of-{name}"
        self._put(kind, name, body, "ADDED")
        if kind == "jobs":
            self._start_pod(body)
        if self.lose_answers and kind == "jobs":
            self.lose_answers -= 1
            assert request.transport is not None
            request.transport.close()
        return web.json_response(body, status=201)

    async def _read(self, request: web.Request) -> web.Response:
        found = self.objects[request.match_info["kind"]].get(request.match_info["name"])
        return web.json_response(found) if found else _fault(404, "not found")

    async def _replace(self, request: web.Request) -> web.Response:
        self._put(request.match_info["kind"], request.match_info["name"], await request.json(), "MODIFIED")
        return web.json_response({})

    async def _remove(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        if name not in self.objects[kind]:
            return _fault(404, "not found")
        self._delete(kind, name)
        if kind == "jobs":  # the garbage collector: what the Job owns
            for owned in ("secrets", "pods"):
                if name in self.objects[owned]:
                    self._delete(owned, name)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _log(self, request: web.Request) -> web.Response:
        return _fault(404, "the node is gone") if self.logs is None else web.Response(text=self.logs)

    def _start_pod(self, job: Object) -> None:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        pod = {"metadata": {"name": name, "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
        self._put("pods", name, pod, "ADDED")
        for number, status in enumerate(self.behave(pod), 1):
            self._loop.call_later(0.01 * number, self._set_status, "pods", name, status)

    def _set_status(self, kind: str, name: str, status: Object) -> None:
        if name in self.objects[kind]:
            self._put(kind, name, {**self.objects[kind][name], "status": status}, "MODIFIED")

    def _put(self, kind: str, name: str, thing: Object, change: str) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        self.objects[kind][name] = thing
        self._tell(kind, change, thing)

    def _delete(self, kind: str, name: str) -> None:
        self._version += 1
        self._tell(kind, "DELETED", self.objects[kind].pop(name))

    def _tell(self, kind: str, change: str, thing: Object) -> None:
        self._history.append((self._version, kind, change, json.dumps(thing)))
        self._wake()

    def _compact(self) -> None:
        self._version += 1
        self._compacted = self._version
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _matches(thing: Object, wanted: dict[str, str]) -> bool:
    labels = thing["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in wanted.items())


def _fault(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": message}
    return web.json_response(body, status=status, headers=headers)
