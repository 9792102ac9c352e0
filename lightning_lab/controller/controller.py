"""The controller: takes rollouts from queued to a terminal state, a bounded number at a time, on a thread of its own.

One way for every rollout: queue → running → the agent is gone → graded in another process → terminal record committed
→ future resolved; where the infrastructure failed, perhaps the queue once more before that (`retries`). Agents and
graders are forked by fork servers (`servers`, `fork_server`); each is watched by a supervisor of its own
(`supervisor`). With a cluster, agents are pods instead (`kubernetes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from lightning_lab.controller.cgroups import find_places
from lightning_lab.controller.environment import Access
from lightning_lab.controller.lifecycle import Lifecycle, Ticket
from lightning_lab.controller.limits import Limits
from lightning_lab.controller.outcomes import Ending, storable
from lightning_lab.controller.pace import Pace, keep
from lightning_lab.controller.retries import NEVER, Retries
from lightning_lab.controller.sandbox import Sandbox
from lightning_lab.controller.servers import ServerPool
from lightning_lab.harnesses import Harness
from lightning_lab.harnesses.shipping import ship
from lightning_lab.records import Outcome, Rollout, RolloutState, Sampling
from lightning_lab.store import Store
from lightning_lab.tasks import Grader
from lightning_lab.tasks.files import check_files

if TYPE_CHECKING:
    from lightning_lab.controller.kubernetes.settings import Cluster

_LOG = logging.getLogger(__name__)
_CLOSE_LIMIT_S = 30.0
_ERROR_CHARS = 2_000
"""Of an attempt that failed, in the log."""


class ControllerError(RuntimeError):
    """The controller cannot do this now; the message says why."""


class Credentials(Protocol):
    """Who gives a rollout its way to the model: the gateway.

    It may also offer ``faults(rollout_id) -> list[str]``: outcomes (``policy_error``, ``context_overflow``) that
    explain why the agent failed; and ``admission``: how many calls are in flight and held, for ``auto``.
    """

    def open_rollout(self, rollout_id: str, *, attempt: int = 1, sampling: Sampling | None = None) -> Access: ...
    def close_rollout(self, rollout_id: str) -> None: ...


class Controller:
    """Runs rollouts as local processes, or as pods of a ``cluster``. Thread-safe.

    ``root`` is where private working directories go; ``concurrency`` bounds the rollouts that run at one time
    (default: four per core, as agents mostly wait for the model; ``auto``: see `pace`); ``limits`` bound each local
    process tree, ``sandbox`` shuts it in.
    """

    def __init__(
        self,
        store: Store,
        credentials: Credentials,
        root: Path,
        *,
        concurrency: int | Literal["auto"] | None = None,
        boot_timeout_s: float = 120.0,
        limits: Limits = Limits(),  # noqa: B008 - it is immutable
        sandbox: Sandbox | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.cluster, self.sandbox = cluster, sandbox
        self._store, self._credentials, self._root = store, credentials, Path(root)
        self._pace = Pace() if concurrency == "auto" else None
        fixed = concurrency if isinstance(concurrency, int) else 4 * (os.cpu_count() or 1)
        self._concurrency = self._pace.concurrency if self._pace else _checked(fixed)
        self.concurrency_by: Literal["default", "set", "auto"] = (
            "auto" if self._pace else "default" if concurrency is None else "set"
        )
        """Where `concurrency` comes from."""
        self._boot_timeout_s, self._limits = boot_timeout_s, limits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._queue: deque[Ticket] = deque()
        self._tickets: dict[str, Ticket] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._lock = threading.Lock()
        self._closed = False

    @property
    def concurrency(self) -> int:
        """How many rollouts run at one time; lowering it lets the surplus finish."""
        return self._concurrency

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        self._concurrency = _checked(value)
        if self._loop is not None and not self._closed:
            self._loop.call_soon_threadsafe(self._pump)

    @property
    def running(self) -> int:
        """How many rollouts run now."""
        return self._running

    def start(self) -> None:
        """Start the thread. Idempotent. Raises `ControllerError` after `close`, and `ClusterError`."""
        with self._lock:
            if self._closed:
                raise ControllerError("The controller is closed: make a new one.")
            if self._thread is not None:
                return
            self._root.mkdir(parents=True, exist_ok=True)
            private = Path(tempfile.mkdtemp(prefix="rollouts-", dir=self._root))
            ready: Future[asyncio.AbstractEventLoop] = Future()
            self._thread = threading.Thread(
                target=self._main, args=(private, ready), name="lightning-lab-controller", daemon=True
            )
            self._thread.start()
            self._loop = ready.result()

    def for_cluster(self, cluster: Cluster, concurrency: int) -> Controller:
        """Another one beside this, with the same store and gateway, whose agents are pods; not started."""
        return Controller(
            self._store, self._credentials, self._root, concurrency=concurrency, limits=self._limits, cluster=cluster
        )

    def close(self) -> None:
        """Cancel what is queued or running, end every process, stop the thread. Idempotent; no process is left."""
        with self._lock:
            already, self._closed = self._closed, True
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                return
            if not already:
                loop.call_soon_threadsafe(self._stop.set)
        if thread is not threading.current_thread():
            thread.join(_CLOSE_LIMIT_S)
        if thread.is_alive():
            raise ControllerError(f"The controller's thread did not end within {_CLOSE_LIMIT_S:g} s.")

    def submit(
        self,
        rollout: Rollout,
        harness: Harness,
        grader: Grader | None,
        *,
        sampling: Sampling | None = None,
        retries: Retries = NEVER,
    ) -> Future[Rollout]:
        """Queue a rollout. The future gives the terminal record, after its commit; cancelling it has no effect.

        Without a grader, a completed rollout has no reward. Each attempt that fails and is made again is an event
        ``attempt``: its number, ``outcome``, ``error``, and ``delay_s`` until the next one.

        Raises `ShippingError` if the harness or the grader cannot be sent to another process, `HarnessError` if the
        command does not fit the task, `TaskError` if the task's files are unusable, `ControllerError` if the
        controller is not running or has this rollout already.
        """
        queued = replace(
            rollout, state=RolloutState.QUEUING, harness=harness.info, created_at=rollout.created_at or time.time()
        )
        ticket = Ticket(
            rollout=queued,
            harness=harness,
            grader=grader,
            sampling=sampling,
            retries=retries,
            agent_payload=self._agent_payload(harness, queued),
            grader_payload=ship(grader.function, queued.task, what=f"Grader {grader.name}") if grader else b"",
        )
        ticket.future.set_running_or_notify_cancel()  # a waiting cell that is interrupted cannot cancel the rollout
        with self._lock:  # so that `close` comes before all of this, or after all of it
            loop = self._running_loop()
            if queued.id in self._tickets:
                raise ControllerError(f"Rollout {queued.id} is queued or running already.")
            self._store.put_rollout(queued)
            self._tickets[queued.id] = ticket
            loop.call_soon_threadsafe(self._enqueue, ticket)
        return ticket.future

    def cancel(self, rollout_id: str) -> None:
        """End a rollout as cancelled, wherever it is; one that is over or unknown is left alone."""
        self._running_loop().call_soon_threadsafe(self._cancel, rollout_id)

    def prewarm(self, harness: Harness, grader: Grader | None = None) -> None:
        """Start the fork servers of a harness and a grader now, so that the first rollout need not wait."""
        loop = self._running_loop()
        loop.call_soon_threadsafe(self._lifecycle.prewarm, harness, grader)

    def _agent_payload(self, harness: Harness, rollout: Rollout) -> bytes:
        """What the agent's process needs beyond its spec; a command or a pod is only checked to fit the task."""
        check_files(rollout.task)
        if self.cluster is not None:
            from lightning_lab.controller.kubernetes import manifests, schema

            schema.check_job(manifests.job(harness, rollout, self.cluster), harness.name)
            manifests.task_file(rollout)
            return b""
        if harness.function is None:
            harness.arguments(rollout.task)
            return b""
        return ship(harness.function, rollout.task, what=f"Harness {harness.name}")

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._closed:
            raise ControllerError("The controller is closed." if self._closed else "Call start() first.")
        return self._loop

    # Everything below runs on the controller's own thread.

    def _main(self, private: Path, ready: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            asyncio.run(self._serve(private, ready))
        except BaseException as error:
            _LOG.exception("The controller's thread failed.")
            if not ready.done():
                ready.set_exception(error)

    async def _serve(self, private: Path, ready: Future[asyncio.AbstractEventLoop]) -> None:
        self._stop = asyncio.Event()
        pool = ServerPool(private, self._boot_timeout_s, find_places())
        jobs = None
        if self.cluster is not None:
            from lightning_lab.controller.kubernetes.runner import JobRunner

            jobs = JobRunner(self.cluster, self._store, self._credentials)
        self._lifecycle = Lifecycle(self._store, self._credentials, private, pool, self._limits, self.sandbox, jobs)
        try:
            if jobs is not None:
                await jobs.start()
            ready.set_result(asyncio.get_running_loop())
            if self._pace is not None:
                pacing = asyncio.create_task(self._keep(self._pace))
            await self._stop.wait()
            if self._pace is not None:
                pacing.cancel()
            for rollout_id in list(self._tickets):
                self._cancel(rollout_id)
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            await pool.end_all()
            if jobs is not None:
                await jobs.close()
            await self._lifecycle.close()

    async def _keep(self, pace: Pace) -> None:
        def change(concurrency: int) -> None:
            self._concurrency = concurrency
            self._pump()

        await keep(
            pace,
            self._store,
            lambda: getattr(self._credentials, "admission", None),
            lambda: (self._running >= self._concurrency, len(self._queue)),
            change,
        )

    def _enqueue(self, ticket: Ticket) -> None:
        self._queue.append(ticket)
        self._pump()

    def _pump(self) -> None:
        """Bring what runs in line with what may run."""
        while self._queue and self._running < self._concurrency:
            self._running += 1
            self._spawn(self._drive(self._queue.popleft()))

    def _cancel(self, rollout_id: str) -> None:
        ticket = self._tickets.get(rollout_id)
        if ticket is None:
            return
        ticket.cancel()
        if ticket in self._queue:
            self._queue.remove(ticket)
            self._spawn(self._finish(ticket, ticket.closed(Ending(outcome=Outcome.CANCELLED))))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drive(self, ticket: Ticket) -> None:
        try:
            final = await self._lifecycle.run(ticket)
        except Exception:
            _LOG.exception("Rollout %s was lost.", ticket.rollout.id)
            final = ticket.closed(Ending(outcome=Outcome.LOST, error=storable(traceback.format_exc())))
        finally:
            self._running -= 1
            self._pump()
        delay_s = ticket.retries.delay_s(final.outcome, ticket.tries)
        if delay_s is None:
            await self._finish(ticket, final)
        else:
            await self._try_again(ticket, final, delay_s)

    async def _try_again(self, ticket: Ticket, failed: Rollout, delay_s: float) -> None:
        """Queue another attempt after a while. The one that failed is a line of the log, and no end of the rollout."""
        error = failed.error.strip()[-_ERROR_CHARS:]
        data = {"attempt": failed.attempt, "outcome": str(failed.outcome), "error": error, "delay_s": delay_s}
        self._store.put_event("attempt", failed.run_id, failed.id, data)
        ticket.again()
        self._store.put_rollout(ticket.rollout)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ticket.cancelled.wait(), delay_s)
        if ticket.cancelled.is_set():
            await self._finish(ticket, ticket.closed(Ending(outcome=Outcome.CANCELLED)))
        else:
            self._enqueue(ticket)

    async def _finish(self, ticket: Ticket, final: Rollout) -> None:
        """Commit the terminal record, then tell who waits for it."""
        self._tickets.pop(final.id, None)
        try:
            await asyncio.wrap_future(self._store.put_rollout(final))
        except Exception as error:
            ticket.future.set_exception(error)
        else:
            ticket.future.set_result(final)


def _checked(concurrency: int) -> int:
    if concurrency < 1:
        raise ControllerError(f"concurrency is {concurrency}; it must be at least 1.")
    return concurrency
