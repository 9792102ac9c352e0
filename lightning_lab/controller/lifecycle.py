"""One rollout's way through its stages, and what the record says at each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_lab.controller import environment
from lightning_lab.controller.late_imports import names_in
from lightning_lab.controller.limits import Limits, for_spec
from lightning_lab.controller.outcomes import (
    STATES,
    Ending,
    Grade,
    agent_ending,
    grade_of,
    grade_without_grader,
    keyless,
    output_text,
    storable,
)
from lightning_lab.controller.relay import serve_gateway
from lightning_lab.controller.retries import NEVER, Retries
from lightning_lab.controller.sandbox import Sandbox, enclosed, inside_port
from lightning_lab.controller.servers import BootError, Channel, ForkServer, ServerKey, ServerPool
from lightning_lab.controller.starts import Starts
from lightning_lab.controller.supervisor import BOOT_S
from lightning_lab.controller.workdirs import Workdir
from lightning_lab.harnesses import Harness
from lightning_lab.harnesses.source import cell_sources, referred_modules
from lightning_lab.records import Outcome, Rollout, RolloutState, Sampling
from lightning_lab.store import Store
from lightning_lab.tasks import Grader
from lightning_lab.tasks.files import put_files

if TYPE_CHECKING:
    from lightning_lab.controller.controller import Credentials
    from lightning_lab.controller.kubernetes.runner import JobRunner

_LOG = logging.getLogger(__name__)
_LAUNCH_LIMIT_S = 60.0
"""From asking a fork server for a process to that process's first word."""
_REPORT_LIMIT_S = 30.0
"""What a supervisor may take beyond the time of its agent before it counts as lost."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A rollout on its way, with all it needs to run."""

    rollout: Rollout
    harness: Harness
    grader: Grader | None
    sampling: Sampling | None
    agent_payload: bytes
    grader_payload: bytes
    retries: Retries = NEVER
    tries: int = 1
    """Attempts so far that this lab made; earlier ones were another's."""
    future: Future[Rollout] = field(default_factory=Future)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    channel: Channel | None = None

    def cancel(self) -> None:
        self.cancelled.set()
        if self.channel is not None:
            self.channel.cancel()

    def follow(self, channel: Channel) -> None:
        """From now on a cancellation goes to this channel; one that came before goes there now."""
        self.channel = channel
        if self.cancelled.is_set():
            channel.cancel()

    def again(self) -> None:
        """Queue another attempt, which knows nothing of the one that failed."""
        self.tries += 1
        self.rollout = replace(
            self.rollout,
            attempt=self.rollout.attempt + 1,
            state=RolloutState.QUEUING,
            started_at=None,
            agent_started_at=None,
        )

    def closed(self, ending: Ending, grade: Grade | None = None) -> Rollout:
        """The terminal record. A missing or invalid reward of a completed agent is the grader's error."""
        grade = grade or grade_without_grader(ending)
        outcome, error = ending.outcome, ending.error
        if outcome is Outcome.COMPLETED and grade.reward is None and self.grader is not None:
            outcome, error = Outcome.GRADER_ERROR, grade.verdict
        if self.cancelled.is_set():
            outcome, grade = Outcome.CANCELLED, Grade(reward=None, verdict="cancelled: no reward.")
        return replace(
            self.rollout,
            state=STATES.get(outcome, RolloutState.FAILED),
            outcome=outcome,
            reward=grade.reward,
            verdict=storable(grade.verdict),
            output=storable(output_text(ending.output)),
            error=storable(error),
            stdout=storable(ending.stdout),
            stderr=storable(ending.stderr),
            exit_code=ending.exit_code,
            finished_at=time.time(),
        )


class Lifecycle:
    """Runs tickets. Use it on the controller's loop only. With ``jobs``, agents are pods; graders are local still."""

    def __init__(
        self,
        store: Store,
        credentials: Credentials,
        root: Path,
        servers: ServerPool,
        limits: Limits,
        sandbox: Sandbox | None = None,
        jobs: JobRunner | None = None,
    ) -> None:
        self._store, self._credentials, self._root, self._servers = store, credentials, root, servers
        self._limits, self._sandbox, self._jobs = for_spec(limits), sandbox, jobs
        self._starts = Starts(os.cpu_count() or 1)
        self._way_out: asyncio.Task[asyncio.Server] | None = None
        """To the gateway, for those in a sandbox."""

    async def run(self, ticket: Ticket) -> Rollout:
        """Take a ticket from the queue to its terminal record, which is not yet in the store."""
        self._record(ticket, state=RolloutState.RUNNING, started_at=time.time())
        self.prewarm(ticket.harness, ticket.grader)
        workdir = Workdir.create(self._root, ticket.rollout.id, ticket.rollout.attempt)
        try:
            if self._jobs is None:
                ending = await self._run_agent(ticket, workdir)
            else:
                ending = await self._jobs.run(ticket, lambda: self._record(ticket, agent_started_at=time.time()))
            grade = None
            if ticket.grader is None:
                grade = Grade(reward=None, verdict="not graded") if ending.outcome is Outcome.COMPLETED else None
            elif ending.outcome is Outcome.COMPLETED and not ticket.cancelled.is_set():
                grade = await self._run_grader(ticket, ticket.grader, workdir, ending)
            return ticket.closed(ending, grade)
        finally:
            await asyncio.to_thread(workdir.remove)

    def prewarm(self, harness: Harness, grader: Grader | None) -> None:
        """Start fork servers; a failure shows in the rollout that needs them."""
        if self._jobs is None:
            self._servers.start(self._agent_key(harness))
        if grader is not None:
            self._servers.start(_grader_key(grader))

    async def close(self) -> None:
        """When all tickets are over: leave no folder and no socket."""
        if self._way_out is not None:
            (await self._way_out).close()
        await asyncio.to_thread(Workdir(self._root).remove)

    async def _run_agent(self, ticket: Ticket, workdir: Workdir) -> Ending:
        rollout, harness = ticket.rollout, ticket.harness
        server = await self._server(self._agent_key(harness), ticket)
        if isinstance(server, Ending):
            return server
        if server.warning:
            _LOG.warning("%s", server.warning)
            self._store.put_event("log", rollout.run_id, rollout.id, {"level": "warning", "message": server.warning})
            server.warning = ""
        await asyncio.to_thread(put_files, rollout.task, workdir.work)
        access = self._credentials.open_rollout(rollout.id, attempt=rollout.attempt, sampling=ticket.sampling)
        try:
            spec = await self._agent_spec(ticket, workdir, access)
            report = await self._supervised(server, spec, ticket.agent_payload, ticket)
            faults = getattr(self._credentials, "faults", lambda _: ())(rollout.id)
        finally:
            self._credentials.close_rollout(rollout.id)
        if isinstance(report, Ending):
            return report
        return keyless(agent_ending(report, harness.kind, harness.timeout_s, faults), access.key)

    async def _run_grader(self, ticket: Ticket, grader: Grader, workdir: Workdir, ending: Ending) -> Grade:
        try:
            await asyncio.to_thread(workdir.copy_for_grader)
        except OSError as error:
            return Grade(reward=None, verdict=f"The working directory could not be copied for the grader: {error}")
        server = await self._server(_grader_key(grader), ticket)
        if isinstance(server, Ending):
            return Grade(reward=None, verdict=server.error)
        spec = {**_grader_spec(grader, workdir, ending), "limits": self._limits, "sandbox": None}
        report = await self._supervised(server, spec, ticket.grader_payload, ticket)
        if isinstance(report, Ending):
            return Grade(reward=None, verdict=report.error)
        return grade_of(report, grader.timeout_s, grader.name)

    def _agent_key(self, harness: Harness) -> ServerKey:
        """In a sandbox a program starts anew: there is nothing to import before."""
        if self._sandbox is not None:
            return ServerKey.make("agent", (), (), {})
        optional = referred_modules(harness.function) if harness.function is not None else ()
        return ServerKey.make("agent", harness.preload, optional, harness.env)

    async def _agent_spec(self, ticket: Ticket, workdir: Workdir, access: environment.Access) -> dict[str, Any]:
        if self._sandbox is None:
            return {**_agent_spec(ticket, workdir, access), "limits": self._limits, "sandbox": None}
        gateway = self._root / "gateway.sock"
        if self._way_out is None:
            self._way_out = asyncio.create_task(serve_gateway(gateway, access.url))
        await self._way_out
        spec = _agent_spec(ticket, workdir, self._sandbox.inside(access))
        return {
            **spec,
            "env": enclosed(spec["env"]),
            "path": environment.import_path(),
            "limits": self._limits,
            "sandbox": self._sandbox.spec(ticket.harness, workdir, gateway, inside_port(access.url)),
        }

    async def _server(self, key: ServerKey, ticket: Ticket) -> ForkServer | Ending:
        """The fork server, or why there is none; a cancelled rollout does not wait for it."""
        getting = asyncio.ensure_future(self._servers.get(key))
        cancelled = asyncio.ensure_future(ticket.cancelled.wait())
        await asyncio.wait((getting, cancelled), return_when=asyncio.FIRST_COMPLETED)
        cancelled.cancel()
        if not getting.done():
            getting.cancel()
            return Ending(outcome=Outcome.CANCELLED)
        try:
            return getting.result()
        except BootError as error:
            return Ending(outcome=Outcome.AGENT_ERROR if error.by_agent else Outcome.BOOT_TIMEOUT, error=str(error))

    async def _supervised(
        self, server: ForkServer, spec: dict[str, Any], payload: bytes, ticket: Ticket
    ) -> dict[str, Any] | Ending | None:
        """Run one process to its end: the supervisor's report, None if it vanished, an ending if it never began."""
        server.live += 1
        channel = None
        try:
            async with self._starts.turn((spec["kind"] != "grader", ticket.rollout.created_at)) as started:
                if ticket.cancelled.is_set():
                    return Ending(outcome=Outcome.CANCELLED)
                async with asyncio.timeout(_LAUNCH_LIMIT_S):
                    channel = await server.launch(spec, payload)
                ticket.follow(channel)
                report = await self._follow(channel, spec, ticket, started)
            if report is not None and spec["sandbox"] is None:
                server.learn(names_in(report["result"].get("late_imports")))
            return report
        except TimeoutError:
            return Ending(outcome=Outcome.BOOT_TIMEOUT, error=f"No process was forked within {_LAUNCH_LIMIT_S:g} s.")
        except OSError as error:
            return Ending(outcome=Outcome.LOST, error=f"The fork server is gone: {error}")
        finally:
            ticket.channel = None
            server.live -= 1
            if channel is not None:
                server.give_back(channel)

    async def _follow(
        self, channel: Channel, spec: dict[str, Any], ticket: Ticket, started: Callable[[], None]
    ) -> dict[str, Any] | None:
        """Everything the supervisor says up to its report; None if it vanished or fell silent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BOOT_S + spec["timeout_s"] + _REPORT_LIMIT_S):
                while (event := await channel.event()) is not None and event["event"] != "gone":
                    if event["event"] == "started":
                        started()
                    if spec["kind"] != "grader":
                        self._record(ticket, agent_started_at=event.get("started_at"))
                return event
        return None

    def _record(self, ticket: Ticket, **changes: Any) -> None:
        ticket.rollout = replace(ticket.rollout, **changes)
        self._store.put_rollout(ticket.rollout)


def _grader_key(grader: Grader) -> ServerKey:
    return ServerKey.make("grader", (), referred_modules(grader.function), grader.env)


def _agent_spec(ticket: Ticket, workdir: Workdir, access: environment.Access) -> dict[str, Any]:
    harness, rollout = ticket.harness, ticket.rollout
    place = {"url": access.url, "key": access.key, "home": str(workdir.home)}
    workdir.furnish_home(harness.home_files(place))
    spec: dict[str, Any] = {
        "kind": harness.kind,
        "timeout_s": harness.timeout_s,
        "cwd": str(workdir.work),
        "folders": [str(folder) for folder in (workdir.work, workdir.home, workdir.temporary)],
        "env": environment.for_agent(workdir.home, workdir.temporary, harness.environment(place), access, rollout.id),
    }
    if harness.function is None:
        if harness.has_task_file:
            workdir.write_task(rollout.task)
        return {**spec, "argv": harness.arguments(rollout.task)}
    return {**spec, "sources": cell_sources(harness.function)}


def _grader_spec(grader: Grader, workdir: Workdir, ending: Ending) -> dict[str, Any]:
    return {
        "kind": "grader",
        "timeout_s": grader.timeout_s,
        "cwd": str(workdir.grading),
        "folders": [str(workdir.grading)],
        "env": {**environment.scrubbed(workdir.grading, workdir.grading), **grader.env},
        "sources": cell_sources(grader.function),
        "result": {
            "output": ending.output,
            "exit_code": ending.exit_code or 0,
            "workdir": str(workdir.copy),
            "stdout": ending.stdout,
            "stderr": ending.stderr,
        },
    }
