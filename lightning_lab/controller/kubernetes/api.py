"""The API server over HTTP, by the official client: answers as JSON objects, faults with a status, patience with both.

Objects are read as plain JSON, not as the client's models: those refuse what a newer cluster adds.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.config import kube_config, load_incluster_config
from kubernetes.aio.config.config_exception import ConfigException

from lightning_lab.controller.capture import Capture
from lightning_lab.controller.kubernetes.manifests import LAB_LABEL, Manifest
from lightning_lab.controller.kubernetes.settings import Cluster, ClusterError

_ANSWER_S = 30.0
_PASSING = frozenset({0, 408, 429, 500, 502, 503, 504})
"""Statuses of faults that pass; 0: no answer at all."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_LOG_LIMIT = 16 * 1024 * 1024
"""More than a kubelet keeps of one container, before it begins a new file."""

T = TypeVar("T")


class ApiFault(Exception):  # noqa: N818 - an answer, or none, of the API server
    """``status`` is that of HTTP, 0 when there was no answer; ``retry_after`` is in seconds."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"The API server answered {status}: {message}" if status else message)
        self.status, self.retry_after = status, retry_after

    @property
    def passes(self) -> bool:
        return self.status in _PASSING


class Backoff:
    """Pauses that double, with jitter, up to a longest one; the server's own wish comes first."""

    def __init__(self) -> None:
        self._next = _PAUSE_S

    def reset(self) -> None:
        self._next = _PAUSE_S

    async def sleep(self, wish: float | None = None) -> None:
        await asyncio.sleep(self._next * random.uniform(0.5, 1.0) if wish is None else wish)
        self._next = min(2 * self._next, _LONGEST_PAUSE_S)


class Api:
    """One namespace of one cluster. `open` it on the loop that uses it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._space = cluster.namespace
        self._selector = f"{LAB_LABEL}={cluster.lab_id.lower()}"
        self._free_at = 0.0

    async def open(self) -> None:
        """Read the configuration; nothing is sent. Raises `ClusterError`."""
        settings = client.Configuration()
        path = self._cluster.kubeconfig or _default_configuration()
        try:
            if path is not None:
                await kube_config.load_kube_config(
                    config_file=path,
                    context=self._cluster.context,
                    client_configuration=settings,
                    persist_config=False,
                )
            else:
                load_incluster_config(client_configuration=settings)
        except (ConfigException, OSError, ValueError) as error:
            raise ClusterError(f"There is no usable configuration of a cluster: {error}") from error
        self._client = client.ApiClient(settings)
        self._core, self._batch = client.CoreV1Api(self._client), client.BatchV1Api(self._client)
        self._network = client.NetworkingV1Api(self._client)

    async def close(self) -> None:
        if hasattr(self, "_client"):
            await self._client.close()

    async def create_job(self, job: Manifest) -> Manifest:
        """A 409 is raised like any other fault; so in all methods here."""
        await self._turn()
        return await self._ask(self._batch.create_namespaced_job_without_preload_content, self._space, job)

    async def read_job(self, name: str) -> Manifest:
        return await self._ask(self._batch.read_namespaced_job_without_preload_content, name, self._space)

    async def delete_job(self, name: str) -> None:
        """With its pods and Secret, which the cluster removes after it; one that is gone is left alone."""
        delete = self._batch.delete_namespaced_job_without_preload_content
        try:
            await self._ask(delete, name, self._space, propagation_policy="Background")
        except ApiFault as fault:
            if fault.status != 404:
                raise

    async def create_secret(self, secret: Manifest) -> None:
        await self._turn()
        await self._ask(self._core.create_namespaced_secret_without_preload_content, self._space, secret)

    async def put_network_policy(self, policy: Manifest) -> None:
        """Create it, or replace the one of the same name."""
        try:
            await self._ask(self._network.create_namespaced_network_policy_without_preload_content, self._space, policy)
        except ApiFault as fault:
            if fault.status != 409:
                raise
            name = policy["metadata"]["name"]
            replace = self._network.replace_namespaced_network_policy_without_preload_content
            await self._ask(replace, name, self._space, policy)

    async def delete_network_policy(self, name: str) -> None:
        await self._ask(self._network.delete_namespaced_network_policy_without_preload_content, name, self._space)

    async def listed(self, kind: str, selector: str | None = None) -> Manifest:
        """All ``jobs`` or ``pods`` of the lab, or those of a narrower ``selector``."""
        return await self._ask(self._lister(kind), self._space, label_selector=selector or self._selector)

    async def watched(self, kind: str, since: str, lasts_s: float) -> AsyncIterator[Manifest]:
        """What changes after resource version ``since``, for ``lasts_s``. Raises `ApiFault`: 410 when it is too old."""
        response = await self._send(
            self._lister(kind),
            self._space,
            label_selector=self._selector,
            resource_version=since,
            timeout_seconds=max(1, round(lasts_s)),
            watch=True,
            _request_timeout=lasts_s + _ANSWER_S,
        )
        try:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiFault(int(event["object"].get("code", 500)), str(event["object"].get("message", "")))
                yield event
        finally:
            response.close()

    async def log(self, pod: str, container: str) -> str:
        """What a container printed, both streams as they came; its beginning and its end."""
        response = await self._send(
            self._core.read_namespaced_pod_log_without_preload_content,
            pod,
            self._space,
            container=container,
            limit_bytes=_LOG_LIMIT,
            _request_timeout=_ANSWER_S,
        )
        capture = Capture()
        try:
            async for chunk in response.content.iter_any():
                capture.feed(chunk)
        finally:
            response.close()
        return capture.text()

    def _lister(self, kind: str) -> Callable[..., Awaitable[Any]]:
        if kind == "jobs":
            return self._batch.list_namespaced_job_without_preload_content  # type: ignore[no-any-return]
        return self._core.list_namespaced_pod_without_preload_content  # type: ignore[no-any-return]

    async def _ask(self, method: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Manifest:
        response = await self._send(method, *arguments, _request_timeout=_ANSWER_S, **options)
        return dict(json.loads(await response.read()))

    async def _send(self, method: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
        response = await method(*arguments, **options)
        if response.status < 300:
            return response
        text = await response.text()
        try:
            message = json.loads(text)["message"]
        except (ValueError, KeyError, TypeError):
            message = text[:500] or response.reason
        raise ApiFault(response.status, str(message), _seconds(response.headers.get("Retry-After")))

    async def _turn(self) -> None:
        """Wait for one's place in the rate of changes."""
        now = asyncio.get_running_loop().time()
        at = max(now, self._free_at)
        self._free_at = at + 1 / self._cluster.rate
        await asyncio.sleep(at - now)


async def patiently(send: Callable[[], Awaitable[T]], limit_s: float) -> T:
    """Send until it is answered for good. Raises `ApiFault`: one that does not pass, or the last within ``limit_s``."""
    loop = asyncio.get_running_loop()
    end, backoff = loop.time() + limit_s, Backoff()
    while True:
        try:
            return await send()
        except NO_ANSWER as error:
            fault = unanswered(error)
        except ApiFault as error:
            fault = error
        if not fault.passes or loop.time() >= end:
            raise fault
        await backoff.sleep(fault.retry_after)


NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError)
"""What is raised when the API server is away, or falls silent, or is cut off within an answer."""


def unanswered(error: BaseException) -> ApiFault:
    return ApiFault(0, f"The API server did not answer: {error or type(error).__name__}")


def _default_configuration() -> str | None:
    """The user's own, where there is one; inside a pod there is none."""
    path = Path(kube_config.KUBE_CONFIG_DEFAULT_LOCATION).expanduser()
    return str(path) if path.exists() else None


def _seconds(value: str | None) -> float | None:
    try:
        return min(float(value), 60.0) if value is not None else None
    except ValueError:
        return None  # a date: rarely sent, and no better than a pause of one's own
