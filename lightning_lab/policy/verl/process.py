"""The kernel's side of the process that drives Ray: started, asked, and ended here."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import lightning_lab
from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.engines.installing import located
from lightning_lab.policy.engines.versions import check_version
from lightning_lab.policy.verl.errors import GO_ON, LearnerLostError

_END_S = 20.0
_SHOWN = 1500
"""Characters of the process's last words that an error repeats."""
_PASSED = ("HF_HUB_OFFLINE", "HF_HOME", "OMP_NUM_THREADS")


class DriverProcess:
    """One process, one request at a time."""

    def __init__(self, python: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lightning-lab-verl-"))
        self._log = self._folder / "driver.log"
        self._lock = threading.Lock()
        self.environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        if python != sys.executable:
            self.environment["PYTHONPATH"] = str(self._own_code())
        self._connection, there = Pipe()
        with there, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "lightning_lab.policy.verl.driver", str(there.fileno()), str(os.getpid())],
                pass_fds=[there.fileno()],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ask(self, method: str, *arguments: Any) -> Any:
        """Raises what the method raises there, or `LearnerLostError` when the process ends over it."""
        with self._lock:
            try:
                self._connection.send((method, arguments))
                kind, value = self._connection.recv()
            except (EOFError, OSError) as error:
                raise LearnerLostError(
                    f"The process that drives the learner has ended (exit code {self._code()}). {GO_ON}"
                    f"{self._last_words()}"
                ) from error
        if kind == "raised":
            raise value
        return value

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it, its Ray cluster if it started one, and every rank. Idempotent."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        if self.alive:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _own_code(self) -> Path:
        """A folder with this package alone: the other environment must run the same code, and see nothing else of this
        one."""
        site = self._folder / "site"
        site.mkdir()
        (site / "lightning_lab").symlink_to(Path(lightning_lab.__file__).parent, target_is_directory=True)
        return site

    def _code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        return self._process.poll()

    def _last_words(self) -> str:
        said = self._log.read_text(encoding="utf-8", errors="replace").strip() if self._log.exists() else ""
        return f"\n{said[-_SHOWN:]}" if said else ""


def verl_python(configured: str | None) -> str:
    """The interpreter of an environment that has verl. Raises `EngineMissingError`, `EngineVersionError`."""
    if configured is not None:
        found = shutil.which(str(Path(configured).expanduser()))
        if found is None:
            raise PolicyError(f"There is no interpreter {configured}. Give the python of an environment that has verl.")
        return found
    if importlib.util.find_spec("verl") is not None:
        check_version("verl", importlib.metadata.version("verl"), where=sys.prefix)
        return sys.executable
    return str(located("verl").python)
