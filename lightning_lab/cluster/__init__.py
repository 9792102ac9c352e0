"""Training that runs apart from the notebook: the program that is sent, and the jobs that run it.

A submitted run is a *job*: a folder with the program and what became of it (`folder`), and a process that a Ray cluster
(`ray_jobs`) or this machine (`local_jobs`) keeps when the kernel is gone. Asking a Ray cluster takes its HTTP interface
only: the kernel needs no Ray, and does not end when the head node does.
"""

from lightning_lab.cluster.errors import (
    HeadUnreachableError,
    JobDiedError,
    JobError,
    ProgramError,
    UnknownRunError,
    WorkersMissingError,
)
from lightning_lab.cluster.folder import JobFolder
from lightning_lab.cluster.jobs import Jobs, JobStatus, connect, jobs_at
from lightning_lab.cluster.program import program_of
from lightning_lab.cluster.workers import GPU_GIB, Workers

__all__ = [
    "GPU_GIB",
    "HeadUnreachableError",
    "JobDiedError",
    "JobError",
    "JobFolder",
    "JobStatus",
    "Jobs",
    "ProgramError",
    "UnknownRunError",
    "Workers",
    "WorkersMissingError",
    "connect",
    "jobs_at",
    "program_of",
]
