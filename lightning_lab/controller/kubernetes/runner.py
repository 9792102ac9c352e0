"""One rollout as a Job: made, followed to its end, read, removed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lightning_lab.controller.environment import Access, way_to_model
from lightning_lab.controller.kubernetes import manifests, status
from lightning_lab.controller.kubernetes.api import NO_ANSWER, Api, ApiFault, patiently, unanswered
from lightning_lab.controller.kubernetes.manifests import HOME, Manifest
from lightning_lab.controller.kubernetes.settings import Cluster, ClusterError
from lightning_lab.controller.kubernetes.view import Entry, View
from lightning_lab.controller.outcomes import Ending, agent_ending, keyless
from lightning_lab.harnesses import Harness
from lightning_lab.records import Outcome, Rollout
from lightning_lab.store import Store

if TYPE_CHECKING:
    from lightning_lab.controller.controller import Credentials
    from lightning_lab.controller.lifecycle import Ticket

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 60.0
"""How long an API server may be away before a rollout that needs it now is lost."""
_REMOVAL_S = 10.0
"""The same for tidying up: what stays, the cluster removes by itself (deadline, time to live)."""
_LAST_WORD_S = 3.0
"""How long a finished or vanished Job may keep its pod's last word to itself."""
_POD_GONE_S = 30.0
_CONFLICT, _FORBIDDEN = 409, 403


class _ForeignJob(ApiFault):
    """The name is taken by a Job that is not this attempt's."""


class JobRunner:
    """Runs agents as Jobs. Use it on the controller's loop only."""

    def __init__(self, cluster: Cluster, store: Store, credentials: Credentials) -> None:
        self._cluster, self._store, self._credentials = cluster, store, credentials
        self._api = Api(cluster)
        self._view = View(self._api, cluster.relist_s, self._remove_stranger)
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False
        self._reached = False
        """Whether any pod has found the gateway: one that did not may be kept from it."""

    async def start(self) -> None:
        """Close the pods' other ways out, then begin to watch. Raises `ClusterError`: which right is missing, say."""
        await self._api.open()
        try:
            for kind in ("jobs", "pods"):
                await self._api.listed(kind)
            await self._api.put_network_policy(manifests.network_policy(self._cluster))
            self._open = True
        except ApiFault as fault:
            hint = " docs/kubernetes.md has the Role that it needs." if fault.status == _FORBIDDEN else ""
            raise ClusterError(f"The cluster cannot be used: {fault}{hint}") from fault
        except NO_ANSWER as error:
            raise ClusterError(f"The cluster cannot be used: {unanswered(error)}") from error
        for kind in ("jobs", "pods"):
            self._spawn(self._view.follow(kind))

    async def close(self) -> None:
        """Stop watching and take the NetworkPolicy away; all rollouts must be over."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._open:
            await self._tidy(lambda: self._api.delete_network_policy(manifests.policy_name(self._cluster)))
        await self._api.close()

    async def run(self, ticket: Ticket, begun: Callable[[], None]) -> Ending:
        """The agent's whole life; ``begun`` is called once its container runs. When this returns no pod is left."""
        harness, rollout = ticket.harness, ticket.rollout
        entry = self._view.add(manifests.job_name(rollout.id, rollout.attempt))
        ours = True
        access = self._credentials.open_rollout(rollout.id, attempt=rollout.attempt, sampling=ticket.sampling)
        try:
            await self._create(harness, rollout, access, entry)
            end = await self._followed(ticket, entry, begun)
            log = await self._log(entry) if status.started(entry.pod) else None
            faults = getattr(self._credentials, "faults", lambda _: ())(rollout.id)
        except ApiFault as fault:
            ours = not isinstance(fault, _ForeignJob)
            return Ending(outcome=Outcome.LOST, error=str(fault))
        finally:
            self._credentials.close_rollout(rollout.id)
            if ours:
                await self._remove(entry)
            self._view.forget(entry.name)
        return keyless(await self._judged(_ending(end, harness, log, faults), rollout), access.key)

    async def _create(self, harness: Harness, rollout: Rollout, access: Access, entry: Entry) -> None:
        """The Job first, since it owns the Secret; a pod that is there sooner waits for it. Raises `ApiFault`."""
        job = manifests.job(harness, rollout, self._cluster)
        made = await patiently(lambda: self._created_or_found(job), _PATIENCE_S)
        if not entry.seen:
            entry.show("jobs", made)
        url = self._cluster.gateway_url.rstrip("/") + urlsplit(access.url).path
        own = harness.environment({"url": url, "key": access.key, "home": HOME})
        values = {**own, **way_to_model(url, access.key, rollout.id)}
        secret = manifests.secret(harness, rollout, self._cluster, values, made["metadata"]["uid"])
        try:
            await patiently(lambda: self._api.create_secret(secret), _PATIENCE_S)
        except ApiFault as fault:
            if fault.status != _CONFLICT:  # made by a request whose answer was lost
                raise

    async def _created_or_found(self, job: Manifest) -> Manifest:
        """Ours, if a request whose answer was lost made it already."""
        try:
            return await self._api.create_job(job)
        except ApiFault as fault:
            if fault.status != _CONFLICT:
                raise
        name = job["metadata"]["name"]
        found = await self._api.read_job(name)
        marks = [(each["metadata"].get("labels"), each["metadata"].get("annotations")) for each in (found, job)]
        if any(not _holds(have, want) for have, want in zip(*marks, strict=True)):
            raise _ForeignJob(_CONFLICT, f"there is a Job {name} already, and it is not this lab's")
        return found

    async def _followed(self, ticket: Ticket, entry: Entry, begun: Callable[[], None]) -> status.Exit | status.Fault:
        """Wait for the end. Raises `ApiFault` when the API server stays away just when it must be asked."""
        loop, timeout_s = asyncio.get_running_loop(), ticket.harness.timeout_s
        limit, running, last_word = loop.time() + self._cluster.start_limit_s, False, math.inf
        while True:
            entry.changed.clear()
            if ticket.cancelled.is_set():
                return status.Fault(outcome=Outcome.CANCELLED, error="")
            if not running and status.started(entry.pod):
                running, limit = True, loop.time() + timeout_s
                begun()
            if (end := status.verdict(entry.job, entry.pod)) is not None:
                return end
            last_word = min(last_word, loop.time() + _LAST_WORD_S) if _is_over(entry) else math.inf
            due = min(limit, last_word)
            if loop.time() < due:
                await _either(entry.changed, ticket.cancelled, due - loop.time())
            elif (end := await self._decided(ticket, entry, running, late=limit <= loop.time())) is not None:
                return end

    async def _decided(
        self, ticket: Ticket, entry: Entry, running: bool, late: bool
    ) -> status.Exit | status.Fault | None:
        """Time is up; but the watch may have been cut off: what does the cluster say now?"""
        await patiently(lambda: self._view.refresh(entry), _PATIENCE_S)
        if (end := status.verdict(entry.job, entry.pod)) is not None:
            return end
        if _is_over(entry):
            return status.lost(entry.job)
        if not late or (not running and status.started(entry.pod)):
            return None
        if running:
            return status.Fault(outcome=Outcome.TIMEOUT, error=_timeout_words(ticket.harness.timeout_s))
        return status.not_started(entry.job, entry.pod, self._cluster.start_limit_s)

    async def _log(self, entry: Entry) -> str | None:
        """None when it cannot be had: the node may be gone."""
        pod = entry.pod or {}
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        try:
            return await patiently(lambda: self._api.log(name, container), _REMOVAL_S)
        except ApiFault as fault:
            _LOG.warning("The log of pod %s cannot be read: %s", name, fault)
            return None

    async def _judged(self, ending: Ending, rollout: Rollout) -> Ending:
        """A failure is not the agent's while no pod has reached the gateway at all."""
        if not self._reached:
            calls = await asyncio.to_thread(self._store.calls, rollout.id, attempt=rollout.attempt)
            self._reached = bool(calls)
        if self._reached or ending.outcome not in (Outcome.AGENT_ERROR, Outcome.TIMEOUT):
            return ending
        words = (
            f"No pod has called the gateway at {self._cluster.gateway_url} yet, this one neither: can pods reach that "
            f"address, through firewalls and policies? {ending.error}"
        )
        return replace(ending, outcome=Outcome.LOST, error=words)

    async def _remove(self, entry: Entry) -> None:
        """Take the Job away; what still runs is waited for, so that nothing is graded beside a living agent."""
        await self._tidy(lambda: self._api.delete_job(entry.name))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POD_GONE_S):
                while not (entry.pod is None or entry.pod_gone or status.is_terminal(entry.pod)):
                    entry.changed.clear()
                    await entry.changed.wait()

    def _remove_stranger(self, name: str) -> None:
        """A Job of this lab from before its kernel died: nobody waits for it."""
        self._spawn(self._tidy(lambda: self._api.delete_job(name)))

    async def _tidy(self, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await patiently(send, _REMOVAL_S)
        except ApiFault as fault:
            _LOG.warning("Tidying up: %s", fault)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _ending(
    end: status.Exit | status.Fault, harness: Harness, log: str | None, faults: list[str] | tuple[str, ...]
) -> Ending:
    """As for a local command: the same words, and the model's own faults come first."""
    report: dict[str, Any] = {
        "reason": "exited",
        "status": None,
        "result": {},
        "oom": False,
        "stdout": log or "",
        "stderr": "",
    }
    if isinstance(end, status.Exit):
        ending = agent_ending({**report, "status": end.code, "oom": end.oom}, "command", harness.timeout_s, faults)
        if ending.outcome is Outcome.OOM:
            return replace(ending, error="The agent's container was killed: it went over its memory limit.")
        if ending.outcome is not Outcome.COMPLETED:
            return replace(ending, error="\n".join(part for part in (ending.error, end.message) if part))
        if log is None and not end.message:
            return replace(ending, outcome=Outcome.LOST, error="The agent ended well, but its log could not be read.")
        return replace(ending, output=end.message or ending.output)
    if end.outcome is Outcome.TIMEOUT:
        return replace(
            agent_ending({**report, "reason": "timeout"}, "command", harness.timeout_s, faults), error=end.error
        )
    return Ending(outcome=end.outcome, error=end.error, stdout=log or "")


def _is_over(entry: Entry) -> bool:
    """The Job is finished or gone."""
    return entry.job is None or status.over(entry.job)


def _timeout_words(timeout_s: float) -> str:
    return f"The agent was ended after {timeout_s:g} s (timeout_s of the harness)."


def _holds(have: dict[str, str] | None, want: dict[str, str]) -> bool:
    return all((have or {}).get(key) == value for key, value in want.items())


async def _either(first: asyncio.Event, second: asyncio.Event, limit_s: float) -> None:
    """Wait for one of two events, or until the limit."""
    waiting = [asyncio.ensure_future(event.wait()) for event in (first, second)]
    try:
        await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
