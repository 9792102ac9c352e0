"""A real Ray head with its job server, as a program of verl's environment."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lightning_lab.cluster import JobError
from lightning_lab.cluster.ray_jobs import RayJobs
from lightning_lab.policy.engines.installing import located

_STARTS = 2
_START_S = 120.0
_OF_A_JOB = ("job_process", "kill -s 0")
"""In the command lines of a job's own process, and of the shell with which Ray ends it when its head is gone."""

_RECORD = """
import json, sys
from ray._raylet import GcsClient
where = (b"CLUSTER_METADATA", b"cluster")
gcs = GcsClient(address=sys.argv[1])
record = json.loads(gcs.internal_kv_get(*where))
print(record["ray_version"])
gcs.internal_kv_put(where[0], json.dumps({**record, "ray_version": sys.argv[2]}).encode(), True, where[1])
"""


class RayHead:
    """``variables`` are what asks it for something needs: its token."""

    def __init__(self) -> None:
        self._claims = contextlib.ExitStack()
        self.variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        for left in reversed(range(_STARTS)):
            self._folder = Path(tempfile.mkdtemp(prefix="ll-ray-", dir="/tmp"))  # sockets have short paths
            if self._start():
                return
            said = (self._folder / "log").read_text(errors="replace")[-2000:]
            self.end()
            if not left:
                pytest.fail(f"Ray's head did not start:\n{said}")

    def _start(self) -> bool:
        self._gcs, dashboard, client, *agents = _ports(7, self._claims)
        self.url = f"http://127.0.0.1:{dashboard}"
        # With ports of their own for its agents the node does not wait, 15 s at most, for those that they found.
        names = ("dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "metrics-export")
        options = {
            **{
                "port": self._gcs,
                "dashboard-port": dashboard,
                "dashboard-host": "127.0.0.1",
                "include-dashboard": "true",
            },
            **{f"{name}-port": port for name, port in zip(names, agents, strict=True)},
            **{"ray-client-server-port": client, "num-cpus": 2, "object-store-memory": 100_000_000},
            **{"temp-dir": self._folder / "ray"},
        }
        ray = [located("verl").python, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*ray, "--disable-usage-stats", *(f"--{name}={value}" for name, value in options.items())],
                env={**os.environ, **self.variables, "RAY_worker_niceness": "0"},  # ranks beside jobs that learn too
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < end:
            if self._answers():
                return True
            time.sleep(0.5)
        return False

    def _answers(self) -> bool:
        """And a machine has joined: before, no job can be sent."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.variables.items():
                patch.setenv(name, value)
            try:
                return len(RayJobs(self.url).nodes()) == 1
            except JobError:
                return False

    @property
    def address(self) -> str:
        """For those that join it."""
        return f"127.0.0.1:{self._gcs}"

    @contextlib.contextmanager
    def said_to_run(self, ray: str) -> Iterator[None]:
        """As a cluster of another version of Ray: those that join compare its own record with theirs."""
        earlier = self._record(ray)
        try:
            yield
        finally:
            self._record(earlier)

    def _record(self, version: str) -> str:
        """The version that the cluster had written down until now."""
        command = [located("verl").python, "-c", _RECORD, self.address, version]
        environment = {**os.environ, **self.variables}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()[-1]

    def kill(self) -> None:
        """As a machine that is lost: everything of Ray at once, without a word."""
        for process in [psutil.Process(self._process.pid), *self._parts()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def end(self) -> None:
        """Idempotent."""
        if self._process.poll() is None:
            parts = self._parts()
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            for process in parts:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        self._claims.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _parts(self) -> list[psutil.Process]:
        """Ray's own processes."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        return [process for process in below if not any(word in _command(process) for word in _OF_A_JOB)]


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _ports(count: int, claims: contextlib.ExitStack) -> list[int]:
    """Free ones below those that Ray gives to its workers, 10002 to 19999. Each is claimed by a name that only one
    process on the machine can have, until ``claims`` closes: two heads that start at once take different ones."""
    found: list[int] = []
    for port in range(9100, 9990):
        with contextlib.ExitStack() as claimed, contextlib.suppress(OSError):
            claimed.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0lightning-lab-ray-{port}")
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", port))
            claims.push(claimed.pop_all())
            found.append(port)
        if len(found) == count:
            return found
    pytest.fail("no free ports below 10000")
