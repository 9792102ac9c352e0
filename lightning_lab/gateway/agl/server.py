"""The compatibility server: in a thread of its own, on a port and with a key of its own."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import uvicorn

from lightning_lab.gateway.agl.app import create_agl_app
from lightning_lab.gateway.agl.forwarding import Forwarding
from lightning_lab.gateway.agl.pausing import Pausing
from lightning_lab.gateway.agl.rollouts import AglRollouts
from lightning_lab.gateway.agl.wire import Config
from lightning_lab.gateway.errors import GatewayError
from lightning_lab.gateway.process import GatewayProcess
from lightning_lab.gateway.server import Gateway
from lightning_lab.gateway.serving import server_config
from lightning_lab.records import Rollout, Sampling
from lightning_lab.store import Store

_START_S = 10.0
_CLOSE_S = 10.0

_log = logging.getLogger(__name__)


class AglServer:
    """Serves Agent Lightning v1.0's routes over a gateway; whatever its clients make belongs to one run.

    ``host``: ``0.0.0.0`` where agents run in pods. ``port=0`` takes a free one. ``key`` is made up unless given.
    """

    def __init__(
        self,
        gateway: Gateway | GatewayProcess,
        store: Store,
        *,
        model: str,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
    ) -> None:
        self.key = key or f"agl-{secrets.token_urlsafe(32)}"
        self._host = host
        self._port = port
        self._rollouts = AglRollouts(store, gateway, model=model)
        self._forwarding = Forwarding()
        self._app = create_agl_app(
            self._rollouts, self._forwarding, Pausing(gateway), key=self.key, host=host, report=gateway.report
        )
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None

    def start(self) -> None:
        """Listen. Raises `GatewayError` when there is no port."""
        listener = self._listen()
        self._rollouts.start()
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(listener, ready), name="lightning-lab-agl", daemon=True
        )
        self._thread.start()
        ready.result(_START_S)

    def close(self) -> None:
        """Stop listening and end what is open as cancelled. Idempotent; leaves no port and no thread."""
        self._rollouts.close()
        if self._thread is None or self._server is None:
            return
        self._server.should_exit = True
        self._thread.join(_CLOSE_S)
        self._app.close()

    def hand_out(
        self, rollout: Rollout, config: Mapping[str, Any], *, sampling: Sampling | None, must_reward: bool
    ) -> Future[Rollout]:
        """Queue a rollout of the lab's own for the external controller; ``config`` is what that is told.

        ``must_reward``: an agent that posts no reward is a `grader_error`. The future gives the terminal record.
        """
        told = Config.model_validate(config)
        return self._rollouts.hand_out(rollout, told, sampling=sampling, must_reward=must_reward)

    def cancel(self, rollout_id: str) -> None:
        """End a rollout as cancelled; one that is over or unknown is left alone."""
        self._rollouts.cancel(rollout_id)

    @property
    def url(self) -> str:
        """What a controller takes as ``agl_server.url``."""
        return f"http://{self._host}:{self._port}"

    @property
    def run_id(self) -> str:
        """The run that holds its rollouts, tagged ``agl_compat``."""
        return self._rollouts.run.id

    @property
    def open(self) -> int:
        """How many of its rollouts have not ended."""
        return self._rollouts.open

    @property
    def instructions(self) -> str:
        """How to point a controller at it."""
        return (
            f"Agent Lightning controllers: python -m agentlightning.controller runner_type=local "
            f"agl_server.url={self.url} agl_server.key={self.key}"
        )

    def __repr__(self) -> str:
        return f"AglServer({self.url}, run {self.run_id}; .key and .instructions for controllers)"

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._host, self._port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            raise GatewayError(
                f"Agent Lightning's routes cannot listen on {self._host}:{self._port} ({error.strerror or error}). "
                "Use port=0 to take any free port, or end the program that holds this one."
            ) from error
        self._port = listener.getsockname()[1]
        return listener

    def _serve(self, listener: socket.socket, ready: Future[None]) -> None:
        try:
            with listener:
                asyncio.run(self._run(listener, ready))
        except BaseException as error:
            _log.exception("The thread of Agent Lightning's routes ended")
            if not ready.done():
                ready.set_exception(GatewayError(f"Agent Lightning's routes could not start: {error}"))

    async def _run(self, listener: socket.socket, ready: Future[None]) -> None:
        config = server_config(self._app)
        self._server = uvicorn.Server(config)
        await self._forwarding.open()
        try:
            ready.set_result(None)  # the socket listens: what comes now waits for the server
            await self._server.serve(sockets=[listener])
        finally:
            await self._forwarding.close()
