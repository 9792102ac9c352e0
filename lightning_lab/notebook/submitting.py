"""``%%submit``: a cell's training as a job that outlives the kernel."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ulid import ULID

from lightning_lab.cluster import JobFolder, Jobs, ProgramError, Workers, connect, jobs_at, program_of
from lightning_lab.notebook.attached import AttachedRun, JobStore
from lightning_lab.notebook.job import Job

if TYPE_CHECKING:
    from lightning_lab.notebook.lab import Lab

MAGIC = "submit"


class Submissions:
    """What a lab has sent to clusters, and what it follows of it."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._attached: dict[str, AttachedRun] = {}
        self.jobs: Jobs | None = None

    def connect(self, address: str, python: str = "python") -> Jobs:
        """From now on ``%%submit`` sends cells there. In a job, which is there already, nothing is asked."""
        self.jobs = connect("local" if Job.current else address, python=python)
        shell = _shell()
        if shell is not None:
            shell.register_magic_function(self._magic, magic_kind="cell", magic_name=MAGIC)
        return self.jobs

    def check(self, workers: Workers) -> float | None:
        """GiB of one GPU, where that is known. Raises `cluster.WorkersMissingError`.

        In a job this was done when it was submitted.
        """
        if Job.current is not None:
            return Job.current.gpu_gib
        nodes = (self.jobs or connect("local")).nodes()
        workers.check(nodes)
        return workers.memory_gib(nodes)

    def submit(self, cell: str, earlier: Sequence[str], workers: Workers) -> AttachedRun:
        """Send a cell with what it uses of earlier ones. Raises `cluster.JobError`."""
        jobs = self.jobs or self.connect("local")
        program = program_of(cell, earlier)
        if ".fit(" not in program:
            raise ProgramError("The cell trains nothing: a submitted cell needs a line with trainer.fit(steps=…).")
        about = {"workers": asdict(workers), "gpu_gib": self.check(workers)}
        asked = {"cluster": jobs.address, "cwd": str(Path.cwd()), **about}
        job = JobFolder.create(self._lab.path.parent, str(ULID()), program, **asked)
        jobs.submit(job)
        return self._follow(job, jobs)

    def attach(self, run_id: str) -> AttachedRun:
        """Raises `cluster.UnknownRunError`, or `cluster.HeadUnreachableError` for a run that has not ended."""
        if run_id in self._attached:
            return self._attached[run_id]
        job = JobFolder.open(self._lab.path.parent, run_id)
        jobs = jobs_at(job.read("job")["cluster"])
        jobs.status(job)
        return self._follow(job, jobs)

    def close(self) -> None:
        for run in self._attached.values():
            run.source.close()

    def _follow(self, job: JobFolder, jobs: Jobs) -> AttachedRun:
        source = JobStore(job, self._lab)
        run = self._attached[job.run_id] = AttachedRun(source, jobs, self._lab.show)
        return run

    def _magic(self, line: str, cell: str) -> AttachedRun:
        options = _options(line)
        shell = _shell()
        earlier = shell.history_manager.input_hist_raw[1:-1] if shell else []
        run = self.submit(cell, earlier, Workers(gpus=options.gpus, kind=options.kind))
        self._lab.show_attached(run)
        return run


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ProgramError(f"%%{MAGIC}: {message}. Use %%{MAGIC} [--gpus N] [--kind A100].")


def _options(line: str) -> argparse.Namespace:
    parser = _Parser(prog=f"%%{MAGIC}", add_help=False)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--kind", default=None)
    return parser.parse_args(shlex.split(line))


def _shell() -> Any:
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()
