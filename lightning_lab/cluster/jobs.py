"""What keeps a job while no kernel does: a Ray cluster, or this machine."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lightning_lab.cluster.errors import JobError
from lightning_lab.cluster.folder import JobFolder

JobState = Literal["queued", "running", "succeeded", "failed", "stopped"]
ENDED: frozenset[str] = frozenset({"succeeded", "failed", "stopped"})
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Where a job's process is. ``said``: the cluster's or the job's own words, why it ended."""

    state: JobState
    said: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def own_words(job: JobFolder) -> JobStatus | None:
    """How the job itself says that it ended; None while it runs, and of one that was killed."""
    ended = job.read("ended")
    return JobStatus("failed" if ended["exit_code"] else "succeeded", str(ended["error"])) if ended else None


def death(exit_code: int | None) -> str:
    """Of a process that left no word. ``exit_code``: as a shell or `subprocess` tells it, where it is known."""
    if exit_code in _KILLED:
        return "Its process was killed (SIGKILL); the usual reason is that its machine ran out of memory."
    return "Its process is gone" + ("." if exit_code is None else f" with exit code {exit_code}.")


class Jobs(Protocol):
    """Every method may raise `HeadUnreachableError`."""

    address: str

    def check(self) -> None:
        """Raises unless jobs can be sent there."""
        ...

    def nodes(self) -> Sequence[Mapping[str, float]]:
        """The resources of each machine, in Ray's words: ``CPU``, ``GPU``, ``accelerator_type:A100`` …"""
        ...

    def submit(self, job: JobFolder) -> None:
        """Start the job's process, which outlives this one. Raises `JobError`."""
        ...

    def status(self, job: JobFolder) -> JobStatus:
        """Raises `UnknownRunError` where the cluster does not know the job."""
        ...

    def log(self, job: JobFolder) -> str:
        """What the job has printed; empty where that cannot be told."""
        ...

    def end(self, job: JobFolder) -> None:
        """End the job's process now."""
        ...


def connect(address: str = "local", *, python: str = "python") -> Jobs:
    """``local``: this machine. ``ray://head`` or ``http://head:8265``: a Ray cluster, which must answer.

    ``python``: the interpreter on the cluster's machines that has Lightning Lab.

    Raises `HeadUnreachableError`, or `JobError` for an address of neither kind and a Ray that is not supported.
    """
    jobs = jobs_at(address, python=python)
    jobs.check()
    return jobs


def jobs_at(address: str, *, python: str = "python") -> Jobs:
    """As `connect`, without asking whether it answers: how a run ended is also known when its cluster is gone."""
    if address == "local":
        from lightning_lab.cluster.local_jobs import LocalJobs

        return LocalJobs()
    if address.startswith(("ray://", "http://", "https://")):
        from lightning_lab.cluster.ray_jobs import RayJobs

        return RayJobs(address, python=python)
    raise JobError(f"There is no cluster {address!r}. Use 'local', 'ray://head' or 'http://head:8265'.")
