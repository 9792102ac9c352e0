"""Real kernels and what is left of them: for the notebook's tests."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.manager import KernelManager

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s for: {what}")
        time.sleep(0.02)


def own_children() -> list[str]:
    return [" ".join(child.cmdline())[:80] for child in psutil.Process().children(recursive=True) if is_alive(child)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Kernel:
    """A real IPython kernel; every iopub message is kept in ``messages``."""

    def __init__(self, folder: Path, argv: list[str] | None = None) -> None:
        paths = (str(REPOSITORY), str(HERE), os.environ.get("PYTHONPATH", ""))
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "IPYTHONDIR": str(folder / "ipython"),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        self.manager = KernelManager()
        self.manager.kernel_spec.argv = argv or [sys.executable, *self.manager.kernel_spec.argv[1:]]
        self.manager.start_kernel(cwd=str(folder), env=self.environment)
        self.messages: list[dict[str, Any]] = []
        self._connect()

    def _connect(self) -> None:
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        while not self._stop.is_set():
            try:
                self.messages.append(self.client.get_iopub_msg(timeout=0.1))
            except queue.Empty:
                continue

    def start(self, code: str) -> str:
        """Send a cell; returns its message id at once."""
        return str(self.client.execute(code))

    def run(self, code: str, seconds: float = 60) -> str:
        """Run a cell to its end; returns what it printed. Fails with the cell's traceback."""
        return self.finish(self.start(code), seconds)

    def finish(self, cell: str, seconds: float = 60) -> str:
        reply = self.reply(cell, seconds)
        if reply["content"]["status"] != "ok":
            pytest.fail("\n".join(reply["content"].get("traceback", [str(reply["content"])])))
        return self.printed(cell)

    def reply(self, cell: str, seconds: float = 60) -> dict[str, Any]:
        while True:
            message = self.client.get_shell_msg(timeout=seconds)
            if message["parent_header"].get("msg_id") == cell:
                break
        wait_until(lambda: any(is_idle(message) for message in self.of(cell)), "the cell to be idle")
        return dict(message)

    def of(self, cell: str) -> list[dict[str, Any]]:
        return [message for message in list(self.messages) if message["parent_header"].get("msg_id") == cell]

    def printed(self, cell: str) -> str:
        return "".join(m["content"]["text"] for m in self.of(cell) if m["msg_type"] == "stream")

    def frames(self) -> list[dict[str, Any]]:
        """Messages of the panel's push feed, in order of arrival."""
        pushed = [m for m in list(self.messages) if m["msg_type"] == "comm_msg"]
        return [m for m in pushed if m["content"]["comm_id"] == "lightning-lab-push"]

    def process(self) -> psutil.Process:
        return psutil.Process(self.manager.provisioner.pid)

    def restart(self, *, now: bool = False) -> None:
        self._disconnect()
        self.manager.restart_kernel(now=now, env=self.environment)
        self._connect()

    def _disconnect(self) -> None:
        self._stop.set()
        self._thread.join()
        self.client.stop_channels()

    def close(self) -> None:
        self._disconnect()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


def is_idle(message: dict[str, Any]) -> bool:
    return message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
