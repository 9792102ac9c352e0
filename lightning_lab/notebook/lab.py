"""`Lab`: what the first cell opens, and everything that hangs on it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from lightning_lab.controller import Limits, Sandbox
from lightning_lab.gateway import AdmissionState
from lightning_lab.notebook.attached import AttachedRun
from lightning_lab.notebook.data import breaks_frame, rollouts_frame
from lightning_lab.notebook.errors import LabBusyError, LabClosedError
from lightning_lab.notebook.feed import RunFeed
from lightning_lab.notebook.frames import Snapshot
from lightning_lab.notebook.front_end import FrontEnd
from lightning_lab.notebook.kernel import current_kernel
from lightning_lab.notebook.memory_plan import check_memory
from lightning_lab.notebook.on_show import OnShow
from lightning_lab.notebook.opening import OneOpenLab
from lightning_lab.notebook.panel import handlers
from lightning_lab.notebook.parts import AgentSettings, Parts, start_parts
from lightning_lab.notebook.policies import PolicySpec, require_extra
from lightning_lab.notebook.results import checked_grader, checked_harness, checked_task, raise_if_failed
from lightning_lab.notebook.rollout import RolloutView
from lightning_lab.notebook.run import Loop, RunHandle, StoredRun
from lightning_lab.notebook.selection import Selection
from lightning_lab.notebook.singles import SingleRollouts
from lightning_lab.notebook.status import LabStatus
from lightning_lab.notebook.submitting import Submissions
from lightning_lab.notebook.views import MimeBundle, View
from lightning_lab.notebook.waiting import wait_for
from lightning_lab.policy.base import ChatPolicy, Policy
from lightning_lab.records import Run, Sampling
from lightning_lab.samples import Decode
from lightning_lab.store import SECRETS, Redaction, RunFolder, Store

if TYPE_CHECKING:
    import pandas as pd

    from lightning_lab.cluster import Jobs, Workers
    from lightning_lab.gateway.agl import AglServer
    from lightning_lab.training import TrainConfig

log = logging.getLogger(__name__)

_ENDING = "Wait for it with `await run`, end it with run.stop() or run.cancel(), or close the lab with lab.close()."
_PAUSE_S = 24 * 3600.0  # a pause by hand cuts off no call that is under way
_THREAD_END_S = 30.0

T = TypeVar("T")


class Lab(metaclass=OneOpenLab):
    """One policy behind one gateway, ready for agents; all of it in background threads of this process.

    ``policy``: what ``ll.Policy`` gives, or any object with the policy protocol. ``runs``: the folder of run folders.
    ``sampling``: what the model samples with, whatever agents ask for. ``concurrency``: agents at a time (default:
    four per core; ``auto``: what model and machine can take, `controller.pace`). ``limits``: what each may use of this
    machine. ``isolation="bwrap"``: agents see the system read-only, their own folders, ``readable`` and the gateway,
    nothing else. ``gateway="process"``: gateway and store's
    writer in a process of their own, so that a kernel that computes does not slow them. ``resume``: the id of a run
    whose kernel died or whose lab was closed; that lab is opened again, for ``trainer.resume(id)``. ``redact``: regular
    expressions by name; what they match is hidden wherever a run is shown or exported
    (``{**ll.SECRETS, "badge": r"EMP-\\d{6}"}``); the store keeps it until `purge`. ``host``, ``port``: where the
    gateway listens; for agents on other machines an address of this one.

    Equal arguments give the open lab again; others replace it when it is idle. Raises `LabBusyError` when it is not,
    `MissingExtraError`, `policy.base.PolicyError`, `controller.SandboxError`, `gateway.GatewayError` or
    `store.StoreError`; a start that fails leaves nothing behind.
    """

    arguments: Mapping[str, Any]

    def __init__(
        self,
        policy: PolicySpec | Policy,
        *,
        runs: str | Path = "runs",
        sampling: Sampling | None = None,
        concurrency: int | Literal["auto"] | None = None,
        limits: Limits | None = None,
        isolation: Literal["bwrap"] | None = None,
        readable: Sequence[str | Path] = (),
        gateway: Literal["thread", "process"] = "thread",
        resume: str | None = None,
        redact: Mapping[str, str] = SECRETS,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if gateway not in ("thread", "process"):
            raise ValueError(f"gateway={gateway!r}: a lab's gateway runs in a 'thread' or in a 'process' of its own.")
        if isolation not in (None, "bwrap"):
            raise ValueError(f"isolation={isolation!r}: agents run in 'bwrap' (bubblewrap), or unsandboxed without it.")
        sandbox = Sandbox.find(readable) if isolation else None
        self.closed = False
        self.redaction = Redaction(redact)
        self.selection = Selection()
        self._lock = threading.RLock()
        self._closing = threading.Lock()
        self._paused = False
        self.parts_closed = False
        """Whether the store is closed too; until then, a lab that closes still tells what it does."""
        self._pid = os.getpid()
        self._active: RunHandle | None = None
        self._threads: list[threading.Thread] = []
        self._reopened: Store | None = None
        self._submissions = Submissions(self)
        self.on_show = OnShow(self)
        built = policy.build() if isinstance(policy, PolicySpec) else policy
        self._parts = start_parts(
            built,
            runs,
            sampling=sampling or Sampling(),
            agents=AgentSettings(concurrency=concurrency, limits=limits or Limits(), sandbox=sandbox),
            settings={"sampling": sampling, "concurrency": concurrency, "limits": limits, "isolation": isolation},
            outside=gateway == "process",
            build=policy.build if isinstance(policy, PolicySpec) and isinstance(built, ChatPolicy) else None,
            resume=resume,
            host=host,
            port=port,
        )
        self.id = self._parts.folder.run_id
        self._singles = SingleRollouts(self._parts, {"policy": built.name})
        self._front_end = FrontEnd(current_kernel(), self.on_show, self._parts.store, handlers(self))
        atexit.register(self._close_at_exit)

    # -- work ---------------------------------------------------------------------------------------------------------

    async def run(self, harness: Any, task: Any, grader: Any = None) -> RolloutView:
        """Run one rollout and wait for it; no trainer is needed. ``task`` may also be a prompt as text.

        Raises `HarnessError` with the agent's traceback, `GraderError`, or `RolloutError`. Interrupting the cell
        stops the waiting, never the rollout.
        """
        self.open_parts()
        grader = None if grader is None else checked_grader(grader)
        future = self._singles.start(checked_harness(harness), checked_task(task), grader)
        self.show_run(self._singles.run_id)
        rollout = await wait_for(future)
        raise_if_failed(self.redaction.record(rollout))
        return RolloutView(self, rollout.id, snapshot=self.on_show.now)

    def start_training(self, run: Run, loop: Loop) -> RunHandle:
        """Run a training loop in a thread of its own; what ``trainer.fit`` calls. Raises `LabBusyError`."""
        parts = self.open_parts()
        ended: Future[Run] = Future()
        with self._lock:
            self.refuse_a_second_run()
            parts.store.put_run(run).result()
            handle = RunHandle(self, run.id, control=loop, ended=ended, show=self._front_end.show)
            self._active = handle
        self.show_run(run.id)
        self._start_thread(lambda: self._train(loop, ended), f"lightning-lab-run-{run.id}")
        return handle

    def in_background(self, work: Callable[[], T], name: str) -> Future[T]:
        """Do blocking work in a thread that the lab waits for when it closes."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()

        def body() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._start_thread(body, f"lightning-lab-{name}")
        return done

    def pause(self) -> None:
        """Hold new model calls, until `resume`: to agents it looks like latency. Returns at once."""
        gateway = self.open_parts().gateway
        self._paused = True
        self.in_background(lambda: gateway.pause(deadline_s=_PAUSE_S), "pause")

    def resume(self) -> None:
        """Let held calls go on."""
        self._paused = False
        self.open_parts().gateway.resume()

    def cancel_rollout(self, rollout_id: str) -> None:
        """End one rollout as cancelled; one that is over is left alone."""
        self.open_parts().controller.cancel(rollout_id)

    def serve_agl(self, *, host: str = "127.0.0.1", port: int = 0, key: str | None = None) -> AglServer:
        """Serve Agent Lightning v1.0's routes too, for its controllers and agents; the same server when it is open.

        ``host="0.0.0.0"`` where agents run in pods; ``port=0`` takes a free one. Whoever has the key may read and
        alter every rollout made there, so its run is tagged ``agl_compat``. Raises `gateway.GatewayError`.
        """
        from lightning_lab.gateway.agl import AglServer

        parts = self.open_parts()
        with self._lock:
            server = parts.controller.external
            if server is None:
                server = AglServer(parts.gateway, parts.store, model=parts.policy.name, host=host, port=port, key=key)
                server.start()
                parts.controller.external = server
        self.show_run(server.run_id)
        return server

    def purge(self, *, older_than: timedelta) -> int:
        """Forget what rollouts said that ended longer ago: prompts, replies, ids, outputs. Returns how many.

        Their rewards, weights and counts stay. Other labs and exported runs have files of their own. Rollouts of the
        run that trains are left alone.
        """
        return self.open_parts().store.purge(time.time() - older_than.total_seconds())

    def kubernetes(
        self,
        *,
        namespace: str,
        gateway_url: str | None = None,
        concurrency: int = 32,
        kubeconfig: str | None = None,
        context: str | None = None,
        start_limit_s: float = 300.0,
    ) -> None:
        """Run harnesses made by `Harness.kubernetes` as pods in ``namespace``, ``concurrency`` at a time.

        ``gateway_url``: ``http://address:port`` at which pods reach this lab's gateway, where that is not ``host`` and
        ``port`` of the lab. ``start_limit_s``: a pod that has not begun by then is a ``boot_timeout``. Equal settings
        change nothing. Raises `MissingExtraError`, and `ClusterError` when the cluster or the address is of no use.
        """
        from lightning_lab.controller.kubernetes.settings import Cluster

        require_extra("k8s", ("kubernetes", "jinja2", "yaml"), "An agent in a pod")
        parts = self.open_parts()
        cluster = Cluster(
            gateway_url=gateway_url or parts.gateway.url,
            namespace=namespace,
            lab_id=self.id,
            kubeconfig=kubeconfig,
            context=context,
            start_limit_s=start_limit_s,
        )
        with self._lock:
            parts.controller.use_cluster(cluster, concurrency)

    # -- runs that a cluster trains -----------------------------------------------------------------------------------

    def connect(self, address: str = "local", *, python: str = "python") -> Jobs:
        """Where the cell magic ``%%submit`` sends its cell: ``local``, ``ray://head`` or ``http://head:8265``.

        ``local`` jobs are processes of this machine. ``python``: the interpreter on the cluster's machines that has
        Lightning Lab. Raises `cluster.HeadUnreachableError`.
        """
        return self._submissions.connect(address, python)

    def check_workers(self, workers: Workers, config: TrainConfig) -> None:
        """Print a run's memory plan. Raises `planning.DoesNotFitError` for one that cannot fit, and
        `cluster.WorkersMissingError` unless the connected cluster, or this machine, has the workers."""
        check_memory(self.arguments["policy"], config, workers.gpus, self._submissions.check(workers))

    def attach(self, run_id: str) -> AttachedRun:
        """Follow a submitted run, in the panel too, from this or any kernel with the same ``runs`` folder.

        Attaching again gives the same handle. Raises `cluster.UnknownRunError` or `cluster.HeadUnreachableError`.
        """
        run = self._submissions.attach(run_id)
        self.show_attached(run)
        return run

    # -- looking ------------------------------------------------------------------------------------------------------

    def panel(self) -> None:
        """Open the panel beside the notebook; without the extension, show a summary that is refreshed."""
        self._front_end.show(self._panel_bundle)
        self._front_end.greet()

    def view(self, kind: str, id: str | None = None) -> View:
        """A page in a cell: ``lab.view("run")`` or ``lab.view("rollout", "r-…")``; it stays in the saved notebook."""
        if kind == "run":
            return View(self._panel_bundle() if id is None else StoredRun(self, id).bundle())
        if kind == "rollout":
            if id is None:
                raise ValueError('Which rollout? lab.view("rollout", "r-…"); lab.rollouts() lists them.')
            return View(RolloutView(self, id, snapshot=self.on_show.now).bundle())
        raise ValueError(f"There is no view {kind!r}: use 'run' or 'rollout'.")

    def rollouts(self) -> pd.DataFrame:
        """All rollouts of the lab, one line each."""
        return rollouts_frame(self.store, self.store.rollouts(), self.redaction)

    def breaks(self) -> pd.DataFrame:
        """Where and why calls could not be merged into one sample: cause, harness, count, tokens read again."""
        return breaks_frame(self.store, None, self.decode)

    @property
    def decode(self) -> Decode | None:
        """Ids → text; None once the lab is closed."""
        return None if self.closed else self._parts.policy.decode

    @property
    def store(self) -> Store:
        """Everything that was recorded. After `close` it is opened again, for reading."""
        if not self.parts_closed:
            return self._parts.store
        with self._lock:
            if self._reopened is None:
                self._reopened = Store(self._parts.folder.store_path, read_only=True)
            return self._reopened

    def manifest(self, run_id: str) -> Mapping[str, Any]:
        """What the run folder says of a run: code, versions, hashes, settings. Raises `store.StoreError`.

        Single rollouts have no folder of their own; the lab's says it.
        """
        folder = self.path.parent / run_id
        return RunFolder.open(folder if folder.exists() else self.path).manifest()

    @property
    def path(self) -> Path:
        """The lab's own folder: the live store of all its runs. Each training run has a folder beside it."""
        return self._parts.folder.path

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        return self._parts.gateway.url

    @property
    def active_run(self) -> RunHandle | None:
        """The run that trains now."""
        return self._active

    @property
    def admission(self) -> AdmissionState:
        """Model calls that generate or wait at the gateway now."""
        return self._parts.gateway.admission

    @property
    def limit(self) -> tuple[int, str]:
        """How many agents may run at one time, and who says so (`Controllers.limit`)."""
        return self._parts.controller.limit

    @property
    def paused(self) -> bool:
        """Whether `pause` holds model calls now."""
        return not self.closed and self._paused and self.admission.paused

    @property
    def unsandboxed(self) -> bool:
        """Whether agents of this machine see the user's files."""
        return self._parts.controller.sandbox is None

    @property
    def status(self) -> LabStatus:
        snapshot = self.on_show.now()
        return LabStatus(
            state=snapshot.lab_state,
            policy=self._parts.policy.name,
            version=self._parts.policy.version,
            run=snapshot.run["id"] if snapshot.run else None,
            phase=str(snapshot.phase.get("name", "idle")),
            paused=self.paused,
            concurrency=self._parts.controller.concurrency,
            **{name: snapshot.counters.get(name, 0) for name in ("queuing", "running", "in_flight", "held")},
        )

    def __repr__(self) -> str:
        if self.closed:
            return f"Lab(closed, {self.path})"
        how = "agents in bubblewrap"
        if self.unsandboxed:
            how = "unsandboxed: agents are ordinary processes of this machine and can read your files"
        return f"Lab(open, {self._parts.policy.name}, {self.url}, {self.path}, {how})"

    # -- for trainer, panel and bridge --------------------------------------------------------------------------------

    def open_parts(self) -> Parts:
        """Raises `LabClosedError`."""
        if self.closed:
            raise LabClosedError("This lab is closed. Run the cell with ll.Lab(…) again, then the ones that use it.")
        return self._parts

    @property
    def singles(self) -> SingleRollouts:
        return self._singles

    def show_run(self, run_id: str) -> None:
        """Make a run the one on show, unless another one is training."""
        self.on_show.take(run_id)
        self._front_end.wake()

    def show_attached(self, run: AttachedRun) -> None:
        """Make a submitted run the one on show, until another one starts here."""
        self.on_show.follow(run)
        self._front_end.wake()

    def show(self, make: Callable[[], MimeBundle]) -> None:
        """Show a bundle in the running cell and keep it fresh."""
        self._front_end.show(make)

    def snapshot(self, feed: RunFeed | None) -> Snapshot:
        return self.on_show.snapshot(feed)

    def extension_said_hello(self) -> None:
        self._front_end.said_hello()

    def refuse_if_busy(self, intention: str) -> None:
        """Raises `LabBusyError`, naming what is active."""
        with self._lock:
            active = self._active
        if active is not None:
            raise LabBusyError(f"Cannot {intention}: {active!r}. {_ENDING}")
        if self._singles.open:
            raise LabBusyError(
                f"Cannot {intention}: {self._singles.open} rollouts or evaluations of run {self._singles.run_id} are "
                "under way. Wait for them, or close the lab with lab.close()."
            )

        external = self._parts.controller.external
        if external is not None and external.open:
            raise LabBusyError(
                f"Cannot {intention}: {external.open} rollouts of {external!r} have not ended. "
                "Wait for their controller, or close the lab with lab.close()."
            )

    def refuse_a_second_run(self) -> None:
        """Raises `LabBusyError` while a run trains."""
        if self._active is not None:
            raise LabBusyError(f"One run trains at a time: {self._active!r}. {_ENDING}")

    def close(self) -> None:
        """End everything: runs, agents, gateway, threads. Idempotent; what was recorded stays readable."""
        with self._closing:
            if self.closed or os.getpid() != self._pid:  # a fork of the kernel has the lab's memory, not its threads
                return
            self.closed = True
            atexit.unregister(self._close_at_exit)
            try:
                self._parts.gateway.resume()
                self._end_active_run()
                self._parts.controller.close()
                for thread in self._threads:
                    thread.join(_THREAD_END_S)
                self._front_end.close()
                self._submissions.close()
            finally:
                self._parts.close()
                self.parts_closed = True

    def _close_at_exit(self) -> None:
        # Front ends learn from the kernel's end itself, and zmq may be half gone already.
        self._front_end.disconnect()
        self.close()

    def _end_active_run(self) -> None:
        """While the controller still works, so that the run's record says `stopped`, not `failed`."""
        active = self._active
        if active is not None:
            active.cancel()
            active.join(_THREAD_END_S)

    def _panel_bundle(self) -> MimeBundle:
        return self.on_show.bundle(extension_present=self._front_end.extension_present)

    def _train(self, loop: Loop, ended: Future[Run]) -> None:
        outcome: Run | BaseException
        try:
            outcome = loop.run()
        except BaseException as error:
            log.exception("The training thread failed")
            outcome = error
        with self._lock:
            self._active = None
        # Before the waiting cell goes on: a notebook that runs headless keeps only what comes while a cell runs.
        self._front_end.settle()
        if isinstance(outcome, BaseException):
            ended.set_exception(outcome)
        else:
            ended.set_result(outcome)

    def _start_thread(self, body: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=body, name=name, daemon=True)
        with self._lock:
            self._threads = [other for other in self._threads if other.is_alive()]
            self._threads.append(thread)
        thread.start()
