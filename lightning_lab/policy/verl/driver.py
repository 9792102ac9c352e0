"""The process that drives Ray: does what the kernel asks, one thing after the other, until the kernel is gone.

``python -m lightning_lab.policy.verl.driver DESCRIPTOR PARENT``
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import replace
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lightning_lab.policy.base import PolicyError, SharedWeight
from lightning_lab.policy.engines.versions import check_version
from lightning_lab.policy.verl.errors import GO_ON, LearnerLostError
from lightning_lab.policy.verl.messages import RankResult, StepRequest
from lightning_lab.policy.verl.settings import Setup, VerlSettings

_WATCH_S = 1.0
_MISSES = 3
"""Times in a row that the head does not answer before it counts as gone."""


class Driver:
    """One learner. Methods are called by name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ranks: Any = None
        self._replied = threading.Lock()

    def serve(self) -> None:
        """Until the kernel hangs up."""
        while True:
            try:
                method, arguments = self._connection.recv()
            except EOFError:
                return
            reply: tuple[str, Any]
            try:
                reply = "done", getattr(self, method)(*arguments)
            except PolicyError as error:
                reply = "raised", error
            except Exception as error:
                traceback.print_exc()
                reply = "raised", PolicyError(f"The learner failed: {type(error).__name__}: {error}")
            with self._replied, contextlib.suppress(OSError):
                self._connection.send(reply)

    def start(self, directory: Path, settings: VerlSettings, environment: dict[str, str]) -> dict[str, Any]:
        """→ data ranks, the process ids of all ranks, and their seats for servers."""
        _check_verl()
        os.environ.update(environment)
        if settings.address is None and "RAY_ADDRESS" not in os.environ:
            os.environ.update(own_cluster())
        if settings.device == "cpu":
            os.environ.update(cpu_environment())
            environment = {**environment, **cpu_environment()}
        import ray

        from lightning_lab.policy.verl.cluster import Ranks, check_resources, connect
        from lightning_lab.policy.verl.config import check_names

        check_names(settings)
        connect(settings, environment)
        _outlive_signals()  # Ray has set its own
        self._watch(ray.get_runtime_context().gcs_address)
        check_resources(settings)
        self._ranks = Ranks(Setup(directory=directory, settings=settings))
        seats = self._ranks.seats() if settings.collocated else []
        return {"ranks": self._ranks.count, "pids": self._ranks.pids, "seats": seats}

    def learn(self, parts: Any, request: StepRequest) -> list[RankResult]:
        return list(self._ranks.each("learn", parts, request))

    def logprobs(self, parts: Any, temperature: float) -> list[Any]:
        return list(self._ranks.each("logprobs", parts, temperature))

    def export(self, directory: Path) -> None:
        self._ranks.all("export", directory)

    def share(self, first: bool) -> list[SharedWeight]:
        """The next weights, with the handles of all ranks' GPUs; none: there are no more."""
        return [
            replace(one[0], handles={gpu: handle for weight in one for gpu, handle in weight.handles.items()})
            for one in zip(*self._ranks.all("share", first), strict=True)
        ]

    def invite(self, receivers: int, towards: str, deadline_s: float) -> Any:
        return self._ranks.all("invite", receivers, towards, deadline_s)[0]

    def gather(self) -> bool:
        return all(self._ranks.all("gather"))

    def leave(self) -> None:
        self._ranks.all("leave")

    def offer(self, first: bool) -> list[SharedWeight]:
        return list(self._ranks.all("offer", first)[0])

    def send(self) -> None:
        self._ranks.all("send")

    def save(self, directory: Path) -> None:
        self._ranks.all("save_checkpoint", str(directory))

    def load(self, directory: Path) -> None:
        self._ranks.all("load_checkpoint", str(directory))

    def _watch(self, head: str) -> None:
        """Say that the cluster's head is gone before Ray, after a minute or more, ends this process without a word."""
        host, _, port = head.rpartition(":")

        def body() -> None:
            misses = 0
            while misses < _MISSES:
                time.sleep(_WATCH_S)
                misses = 0 if _answers(host.strip("[]"), int(port)) else misses + 1
            lost = LearnerLostError(f"The head of the Ray cluster at {head} is gone, and the learner with it. {GO_ON}")
            with self._replied:
                self._connection.send(("raised", lost))
                os._exit(1)

        threading.Thread(target=body, name="lightning-lab-head", daemon=True).start()


def _check_verl() -> None:
    """Of this interpreter, which the user may have named. Raises `PolicyError`."""
    try:
        version = metadata.version("verl")
    except metadata.PackageNotFoundError as error:
        raise PolicyError(
            f"{sys.executable} has no verl. Leave python out to use the environment that "
            "`lightning-lab engines install verl` makes, or give the python of another one that has it."
        ) from error
    check_version("verl", version, where=sys.prefix)


def own_cluster() -> dict[str, str]:
    """How Ray runs where it is started for one learner: the lab waits for its ranks, a busy machine may be slow to
    start them, and nobody else on this machine or its network may use it."""
    return {
        "RAY_worker_niceness": "0",
        "RAY_agent_register_timeout_ms": "120000",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


def cpu_environment() -> dict[str, str]:
    """What makes verl, wherever it is imported from here on, run on CPUs."""
    return {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "lightning_lab.policy.verl.platform",
        "VERL_ENGINE_DEVICE": "cuda",  # its FSDP engine is registered by devices' names; the class itself asks torch
    }


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2.0).close()
    except OSError:
        return False
    return True


def _outlive_signals() -> None:
    """An interrupted cell is none of its business. A job that is ended gets a signal with all its processes, and needs
    its learner to close: this one ends with its kernel."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _end_with(parent: int) -> None:
    """Also where the kernel was killed while this process is busy: it cannot see then that its connection has ended."""

    def body() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=body, name="lightning-lab-parent", daemon=True).start()


def main() -> None:
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    _outlive_signals()
    _end_with(parent)
    Driver(Connection(descriptor)).serve()
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
