"""Jobs as processes of this machine: they outlive the kernel, and end with the machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_lab.cluster.folder import MODULE, JobFolder
from lightning_lab.cluster.jobs import JobStatus, death, own_words
from lightning_lab.cluster.workers import GPU_GIB

_SHOWN = 2000
"""Characters of a job's last words that a status repeats."""
_KNOWN = sorted({kind.partition("-")[0] for kind in GPU_GIB})


class LocalJobs:
    """One process a job, in a session of its own."""

    address = "local"

    def check(self) -> None:
        """This machine is always there."""

    def nodes(self) -> Sequence[Mapping[str, float]]:
        resources = {"CPU": float(os.cpu_count() or 1)}
        names = _gpu_names()
        if names:
            resources["GPU"] = float(len(names))
            resources |= {f"accelerator_type:{kind}": 1.0 for name in names for kind in _kinds(name)}
        return [resources]

    def submit(self, job: JobFolder) -> None:
        asked = job.read("job")
        with job.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(job.runs), job.run_id],
                cwd=asked["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        job.write("process", {"pid": process.pid, "began": _began(process.pid)})
        _STARTED[job.run_id] = process

    def status(self, job: JobFolder) -> JobStatus:
        alive = self._alive(job)
        told = own_words(job)
        if told is not None:
            return told
        if alive:
            return JobStatus("running" if job.read("begun") else "queued")
        started = _STARTED.get(job.run_id)
        said = death(started.returncode if started else None)
        return JobStatus("failed", f"{said} {self.log(job)[-_SHOWN:]}".strip())

    def log(self, job: JobFolder) -> str:
        return job.log.read_text(encoding="utf-8", errors="replace") if job.log.exists() else ""

    def end(self, job: JobFolder) -> None:
        if self._alive(job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(job.read("process")["pid"]), signal.SIGTERM)

    def _alive(self, job: JobFolder) -> bool:
        if job.run_id in _STARTED:
            return _STARTED[job.run_id].poll() is None
        process = job.read("process")
        pid = int(process.get("pid", 0))
        # A number may belong to another process by now; when that began tells them apart.
        return bool(pid) and _began(pid) == process["began"]


_STARTED: dict[str, subprocess.Popen[bytes]] = {}
"""Children of this kernel, by run: asked for their end, so that none is left as a zombie."""


def _began(pid: int) -> str:
    """When a process started, in ticks since boot; empty when it is gone or a zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if after_name[0] == "Z" else after_name[19]


def _gpu_names() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def _kinds(line: str) -> list[str]:
    """``NVIDIA A100-SXM4-80GB, 81920`` → ``A100-80G`` and ``A100``, as Ray and `Workers` name it."""
    name, _, mebibytes = line.rpartition(",")
    words = re.split("[ -]", name)
    kind = next((known for known in _KNOWN if known in words), name.strip())
    return [kind, f"{kind}-{round(float(mebibytes) / 1024)}G"] if kind == "A100" else [kind]
