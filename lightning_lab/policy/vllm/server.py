"""One vLLM server process on a Unix socket in a private directory: started, watched, started again, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lightning_lab.policy.vllm.errors import SocketTakenError, start_error

LAUNCHER = Path(__file__).parents[1] / "engine_side" / "lightning_lab_launch.py"
START_S = 900.0
"""A large model is read from disk and compiled before the server answers."""
_ASK_S = 0.2
"""Between two looks at whether it answers."""
_END_S = 10.0
_LOG_BYTES = 64 * 1024


class Server:
    """A process and its log. ``healthy`` asks the server itself whether it answers."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        python: Path,
        environment: Mapping[str, str],
        healthy: Callable[[], bool],
        on_end: Callable[[int], None],
    ) -> None:
        """``directory`` is this user's alone. ``on_end`` gets the exit status of a process that nobody asked to end."""
        self.name = name
        self.socket = directory / f"{name}.sock"
        self.log = directory / f"{name}.log"
        self._python, self._environment = python, environment
        self._healthy, self._on_end = healthy, on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._lock = threading.Lock()

    def start(self, arguments: Sequence[str], *, deadline_s: float = START_S) -> None:
        """Returns when it answers. Raises `EngineStartError` and its kinds."""
        with self._lock:
            self._free_socket()
            with self.log.open("wb") as log:
                process = self._process = subprocess.Popen(
                    [self._python, str(LAUNCHER), "--uds", str(self.socket), *arguments],
                    stdin=subprocess.PIPE,  # the lifeline: it closes with this process, however that ends
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._environment},
                    start_new_session=True,
                )
            self._wanted = True
        end = time.monotonic() + deadline_s
        while not self._healthy():
            status = process.poll()
            if status is not None or time.monotonic() > end:
                self.stop()
                raise start_error(self.name, self.last_words(), status)
            time.sleep(_ASK_S)
        threading.Thread(target=self._watch, args=(process,), name=f"lightning-lab-{self.name}", daemon=True).start()

    def stop(self) -> None:
        """End the server and all its processes. Idempotent."""
        with self._lock:
            self._wanted = False
            process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self.socket.unlink(missing_ok=True)

    def kill(self, pid: int | None) -> None:
        """End that process of the server, if it is still the one that runs; its death is told as any other."""
        with self._lock:
            if pid is not None and pid == self.pid and self.alive:
                os.killpg(pid, signal.SIGKILL)

    @property
    def pid(self) -> int | None:
        """Of the process that listens; its session holds the others."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def last_words(self) -> str:
        """The end of its log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # what it left behind holds memory
            os.killpg(process.pid, signal.SIGKILL)
        with self._lock:
            unasked = self._wanted and self._process is process
        if unasked:
            self._on_end(status)

    def _free_socket(self) -> None:
        """A killed server leaves its socket behind; one that somebody listens on is not ours to take."""
        if not self.socket.exists():
            return
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                self.socket.unlink(missing_ok=True)
                return
        raise SocketTakenError(f"Another program listens on {self.socket}. End it, then start the lab again.")
