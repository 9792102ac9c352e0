"""The kernel's side: a gateway and a store's writer that live in another process, used like those in this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from lightning_lab.gateway.admission import AdmissionState, Pausable, PauseReport
from lightning_lab.gateway.auth import Access
from lightning_lab.gateway.errors import GatewayError
from lightning_lab.gateway.process.channel import Channel, ChannelClosedError
from lightning_lab.gateway.process.child import Setup
from lightning_lab.gateway.process.policy import Codec, CodecPolicy, KernelPolicy, PolicyService
from lightning_lab.policy.base import ChatPolicy, Policy, has_engine
from lightning_lab.records import Event, PauseMode, Sampling
from lightning_lab.store.errors import DiskError, StoreClosedError
from lightning_lab.store.schema import Durability
from lightning_lab.store.transaction import Put
from lightning_lab.store.writing import Subscriber, Subscribers, Watcher

_START_S = 60.0
_END_S = 20.0


class GatewayProcess(Pausable):
    """Has the interface of `Gateway`; `writer` is for the `Store` that reads what the process writes.

    ``policy`` is asked here, in the kernel, unless ``build`` says how to make it there.
    """

    def __init__(
        self,
        policy: Policy,
        store: Path,
        *,
        build: Callable[[], Policy] | None = None,
        durability: Durability = "normal",
        **options: Any,
    ) -> None:
        """Starts the process and opens the store there; ``options`` are those of `Gateway`. Raises what those raise."""
        if build is None and isinstance(policy, ChatPolicy):
            raise GatewayError(
                f"{policy.name} cannot be asked from another process. Give ll.Policy.openai(…) itself, "
                'or use gateway="thread".'
            )
        self._service = PolicyService(policy) if build is None else None
        self._state = AdmissionState(False, 0, 0)
        self.writer = RemoteWriter(self, store)
        self._gone = threading.Event()
        here, there = socket.socketpair()
        with there:
            self._process = _start(there)
        handlers = {"told": self.writer.told, **(self._service.handlers if self._service else {})}
        self.channel = Channel(here, handlers, self._gone.set)
        self.channel.start()
        if self._service:
            self._service.start(self.channel)
        able = (hasattr(policy, "encode"), has_engine(policy))
        codec: Codec | None = getattr(policy, "codec", None)
        kind: Callable[..., KernelPolicy] = KernelPolicy if codec is None else partial(CodecPolicy, codec)
        make = build or partial(kind, policy.name, policy.context_length, *able)
        try:
            setup = Setup(store=store, durability=durability, policy=make, options=options)
            self.channel.ask("start", setup).result(_START_S)
        except BaseException:
            self.end()
            raise

    def start(self) -> None:
        """Listen. Idempotent. Raises `GatewayError`."""
        self._ask("start")

    def close(self) -> None:
        """Stop listening; open calls end with an error. Idempotent. The process goes on until the store is closed."""
        with contextlib.suppress(ChannelClosedError, GatewayError):
            self._ask("close")
        if self._service:
            self._service.close()

    @property
    def url(self) -> str:
        """``http://host:port``. Raises `GatewayError` before `start`."""
        return str(self._ask("url"))

    def open_rollout(self, rollout_id: str, *, attempt: int = 1, sampling: Sampling | None = None) -> Access:
        """A new key for this attempt; the key of an earlier attempt stops working."""
        access: Access = self._ask("open_rollout", rollout_id, attempt=attempt, sampling=sampling)
        return access

    def close_rollout(self, rollout_id: str) -> None:
        """End the rollout's credential and cancel its open calls. Returns when none is left."""
        self._ask("close_rollout", rollout_id)

    def pause(self, *, deadline_s: float = 60.0, mode: PauseMode = "wait") -> PauseReport:
        """Hold new calls and wait until none generates. When this raises, admission is open again."""
        try:
            report: PauseReport = self._ask("pause", deadline_s=deadline_s, mode=mode)
        except BaseException:
            self.resume()
            raise
        return report

    def resume(self) -> None:
        """Let held calls in. Harmless when nothing is paused or the process is gone."""
        with contextlib.suppress(GatewayError):
            self._ask("resume")

    @property
    def admission(self) -> AdmissionState:
        """Who generates and who waits, now; the last that was known once the process is gone."""
        with contextlib.suppress(GatewayError):
            self._state = self._ask("admission")
        return self._state

    def faults(self, rollout_id: str) -> list[str]:
        """Why calls of the rollout's latest attempt failed, in order."""
        return list(self._ask("faults", rollout_id))

    def report(self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], status: int) -> None:
        """Another server of the lab refused a request: a `tamper` event, if a rollout's key came with it."""
        self._ask("report", method, path, headers, status)

    def end(self) -> None:
        """End the process; it commits first what was put. Idempotent."""
        self.channel.tell("end")
        if not self.channel.in_receiver():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.channel.close()
        if self._service:
            self._service.close()

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        if self.channel.in_receiver():
            raise GatewayError("This call waits for the gateway's process, so it must not be made in a subscriber.")
        try:
            return self.channel.ask("gateway", method, arguments, named).result()
        except ChannelClosedError:
            code = self._process.poll()
            raise GatewayError(
                f"The gateway's process has ended (exit code {code}). What it had delivered is stored; "
                "open the lab again."
            ) from None


class RemoteWriter:
    """Puts go to the process; what it committed comes back. The `Writing` of the kernel's `Store`."""

    def __init__(self, gateway: GatewayProcess, path: Path) -> None:
        self._gateway = gateway
        self._subscribers = Subscribers(path)
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()

    def submit(self, put: Put | None) -> Future[int]:
        """Send one put, or a barrier. Every refusal is in the future."""
        refused: Future[int] = Future()
        if self._closed or os.getpid() != self._pid:
            refused.set_exception(StoreClosedError("This store is closed; nothing more can be written. Open it again."))
            return refused
        written: Future[int] = Future()
        written.set_running_or_notify_cancel()
        self._gateway.channel.ask("put", put).add_done_callback(lambda done: _pass_on(done, written))
        return written

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        end = self._subscribers.add(callback)
        asked = self._gateway.channel.ask("subscribe")
        if not self.in_writer_thread():  # there it will be answered later
            with contextlib.suppress(ChannelClosedError):
                asked.result()
        return end

    def watch(self, callback: Watcher) -> Callable[[], None]:
        return self._subscribers.add_watcher(callback)

    def host(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """The process writes, whoever puts."""
        return lambda: None

    def in_writer_thread(self) -> bool:
        return self._gateway.channel.in_receiver()

    def stop(self) -> None:
        """Commit what was put; refuse what comes."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            with contextlib.suppress(ChannelClosedError):
                self._gateway.channel.ask("put", None).result()

    def release(self) -> None:
        """End the process."""
        if os.getpid() == self._pid:
            self._gateway.end()

    def told(self, events: Sequence[Event]) -> None:
        """From the process: there was a commit, with these events, if anybody here wants to know them."""
        self._subscribers.tell(events)


def _start(sock: socket.socket) -> subprocess.Popen[bytes]:
    """In a session of its own: an interrupt of the kernel does not reach it."""
    argv = [sys.executable, "-m", "lightning_lab.gateway.process.child", str(sock.fileno()), str(os.getpid())]
    return subprocess.Popen(
        argv,
        pass_fds=(sock.fileno(),),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _pass_on(done: Future[Any], written: Future[int]) -> None:
    error = done.exception()
    if isinstance(error, ChannelClosedError):
        error = DiskError("The process that writes this store has ended; this is not stored. Open the lab again.")
    if error is None:
        written.set_result(done.result())
    else:
        written.set_exception(error)
