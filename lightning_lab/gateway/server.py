"""The gateway: an HTTP server on loopback, in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import uvicorn

from lightning_lab.gateway.admission import Admission, AdmissionState, Pausable, PauseReport
from lightning_lab.gateway.app import BODY_LIMIT, Service, create_app
from lightning_lab.gateway.auth import Access, Grants, served_hosts
from lightning_lab.gateway.capture import CallStore, Capture, Patience
from lightning_lab.gateway.errors import Fault, GatewayError
from lightning_lab.gateway.serving import server_config
from lightning_lab.gateway.sharing import good_neighbour
from lightning_lab.gateway.tamper import Watch
from lightning_lab.policy.base import Policy, has_engine
from lightning_lab.records import PauseMode, Sampling

_T = TypeVar("_T")

_START_S = 10.0
_CLOSE_S = 10.0
_ROLLOUT_CLOSE_S = 5.0


class Gateway(Pausable):
    """Serves one policy to many rollouts and records every call. All methods may be used from any thread."""

    def __init__(
        self,
        policy: Policy,
        store: CallStore,
        *,
        sampling: Sampling | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        stitching: bool = True,
        body_limit: int = BODY_LIMIT,
        patience: Patience | None = None,
    ) -> None:
        """``port=0`` takes a free one; nothing listens before `start`. ``stitching=False`` shows the drift of ids."""
        self._host = host
        self._port = port
        self._policy = policy
        self._store = store
        self._grants = Grants()
        self._admission = Admission()
        self._capture = Capture(
            policy,
            store,
            self._admission,
            sampling=sampling or Sampling(),
            patience=patience or Patience(),
            stitching=stitching,
        )
        self._watch = Watch(self._grants, store)
        self._app = create_app(Service(self._capture, self._grants, self._watch, served_hosts(host), body_limit))
        self._lifecycle = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: _Server | None = None
        self._closed = False

    def start(self) -> None:
        """Listen. Idempotent. Raises `GatewayError` when there is no port, or after `close`."""
        with self._lifecycle:
            if self._closed:
                raise GatewayError("This gateway is closed. Create a new one.")
            if self._thread is not None:
                return
            listener = self._listen()
            ready: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._thread = threading.Thread(
                target=self._serve, args=(listener, ready), name="lightning-lab-gateway", daemon=True
            )
            self._thread.start()
            try:
                ready.result(_START_S)
            except TimeoutError:
                raise GatewayError(
                    f"The gateway did not start within {_START_S:.0f} s; close it and try again."
                ) from None

    def close(self) -> None:
        """Stop listening; open calls end with an error. Idempotent. Leaves no port and no thread."""
        with self._lifecycle:
            self._closed = True
            thread, loop, server = self._thread, self._loop, self._server
            if thread is None or loop is None or server is None or thread is threading.current_thread():
                return
            if thread.is_alive():
                with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                    loop.call_soon_threadsafe(self._stop, server)
            thread.join(_CLOSE_S)
            if thread.is_alive():
                raise GatewayError(f"The gateway thread did not end within {_CLOSE_S:.0f} s; restart the kernel.")

    @property
    def url(self) -> str:
        """``http://host:port``. Raises `GatewayError` before `start`."""
        if self._thread is None:
            raise GatewayError("The gateway is not started. Call start() first.")
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def open_rollout(self, rollout_id: str, *, attempt: int = 1, sampling: Sampling | None = None) -> Access:
        """A new key for this attempt; the key of an earlier attempt stops working.

        ``sampling`` replaces the gateway's for this rollout.
        """
        url = f"{self.url}/rollout/{rollout_id}"
        self._capture.begin(rollout_id)
        return Access(url, self._grants.issue(rollout_id, attempt, sampling))

    def close_rollout(self, rollout_id: str) -> None:
        """End the rollout's credential and cancel its open calls. Idempotent; unknown ids are ignored.

        Returns when no call of the rollout is left, so that what was delivered is marked so in the store.
        """
        grant = self._grants.revoke(rollout_id)
        self._capture.end(rollout_id)
        loop = self._loop
        if grant is None or grant.in_use == 0 or loop is None or not self._alive():
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, and all calls with it
            loop.call_soon_threadsafe(self._capture.abort_rollout, grant)
        if threading.current_thread() is not self._thread:
            self._grants.wait_unused(grant, _ROLLOUT_CLOSE_S)

    def pause(self, *, deadline_s: float = 60.0, mode: PauseMode = "wait") -> PauseReport:
        """Hold new calls and wait until none generates; past the deadline abort what is left. Blocks.

        ``interrupt`` stops calls that generate instead: they keep the tokens they have and go on from those later. An
        engine that can is frozen with them.

        Pair it with `resume` in ``finally``, or use `paused`. When this raises, admission is open again.
        """
        report = self._on_loop(lambda: self._pause(deadline_s, mode))
        self._tell_admission()
        return report

    def resume(self) -> None:
        """Let held calls in. Harmless when nothing is paused or the gateway is closed."""
        if not self._alive():
            return
        with contextlib.suppress(GatewayError):
            self._on_loop(self._resume)
            self._tell_admission()

    @property
    def admission(self) -> AdmissionState:
        """Who generates and who waits, now."""
        return self._admission.state

    def faults(self, rollout_id: str) -> list[str]:
        """Why calls of the rollout's latest attempt failed: ``context_overflow``, ``policy_error``, in order."""
        return self._capture.faults(rollout_id)

    def report(self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], status: int) -> None:
        """Another server of the lab refused a request: a `tamper` event, if a rollout's key came with it."""
        self._watch.elsewhere(method, path, headers, status)

    def _alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if self._port:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._host, self._port))
            listener.listen(2048)
        except OSError as error:
            listener.close()
            where = f"{self._host}:{self._port}" if self._port else f"any port of {self._host}"
            raise GatewayError(
                f"The gateway cannot listen on {where} ({error.strerror or error}). "
                "Use port=0 to take any free port, or end the program that holds this one."
            ) from error
        self._port = listener.getsockname()[1]
        return listener

    def _serve(self, listener: socket.socket, ready: concurrent.futures.Future[None]) -> None:
        try:
            config = server_config(self._app)
            self._server = _Server(config, lambda: ready.set_result(None))
            with listener, good_neighbour(), asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
                self._loop = runner.get_loop()
                elsewhere = self._store.write_on(self._loop)
                try:
                    runner.run(self._server.serve(sockets=[listener]))
                finally:
                    elsewhere()
        except BaseException as error:
            _log.exception("The gateway thread ended")
            if not ready.done():
                ready.set_exception(GatewayError(f"The gateway could not start: {error}"))

    def _stop(self, server: uvicorn.Server) -> None:
        closing = Fault(503, "gateway_closed", "The lab is closing its gateway.")
        self._capture.abort(None, lambda _: closing)
        server.should_exit = True

    async def _pause(self, deadline_s: float, mode: PauseMode) -> PauseReport:
        if mode == "interrupt" and has_engine(self._policy):
            return await self._admission.freeze(self._policy.freeze)
        return await self._admission.pause(deadline_s, mode)

    async def _resume(self) -> None:
        try:
            if has_engine(self._policy):
                await asyncio.to_thread(self._policy.thaw)
        finally:
            self._admission.resume()

    def _tell_admission(self) -> None:
        state = self._admission.state
        data = {"paused": state.paused, "in_flight": state.in_flight, "held": state.held}
        self._store.put_event("admission", "", "", data)

    def _on_loop(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run ``work`` on the gateway's loop and wait for it; an interrupt of the waiting cancels it."""
        loop = self._loop
        if loop is None or not self._alive():
            raise GatewayError("The gateway is not running.")
        if threading.current_thread() is self._thread:
            raise GatewayError("This call blocks, so it must not be made from the gateway's own thread.")
        try:
            future = asyncio.run_coroutine_threadsafe(work(), loop)
        except RuntimeError as error:
            raise GatewayError("The gateway was closed meanwhile.") from error
        try:
            return self._wait(future)
        except BaseException:
            future.cancel()
            raise

    def _wait(self, future: concurrent.futures.Future[_T]) -> _T:
        while True:
            try:
                return future.result(timeout=1.0)
            except concurrent.futures.CancelledError:
                raise GatewayError("The gateway was closed meanwhile.") from None
            except TimeoutError:
                if future.done():
                    raise  # the work itself timed out
                if not self._alive():
                    raise GatewayError("The gateway was closed meanwhile.") from None


class _Server(uvicorn.Server):
    """Says when it accepts connections."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


_log = logging.getLogger(__name__)
