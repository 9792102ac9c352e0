"""A job on disk: ``runs/jobs/<run id>/``, where the notebook and the job's machine both can see it.

::

    job.json        what was asked: cluster, working directory, workers, who submitted
    program.py      the program, as it was taken from the notebook's cells
    begun.json      written by the job: its lab's folder, its machine, its process
    ended.json      written by the job when the program is over: exit code and error
    stop            written by the notebook: finish the step under way, then end
    log.txt         what the job printed, where this machine runs it
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_lab.cluster.errors import JobError, UnknownRunError

MODULE = "lightning_lab.notebook.job_process"
"""What a job's process runs, with the runs folder and the run's id."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class JobFolder:
    """One submitted run. Files appear whole or not at all."""

    def __init__(self, runs: Path, run_id: str) -> None:
        self.runs, self.run_id = runs.absolute(), run_id
        self.path = self.runs / "jobs" / run_id
        self.program, self.log = self.path / "program.py", self.path / "log.txt"
        self._stop = self.path / "stop"

    @classmethod
    def create(cls, runs: Path, run_id: str, program: str, **asked: Any) -> JobFolder:
        """Raises `JobError` where it cannot be made."""
        folder = cls(runs, run_id)
        try:
            folder.path.mkdir(parents=True)
            folder.program.write_text(program, encoding="utf-8")
        except OSError as error:
            raise JobError(
                f"Cannot write the job {folder.path}: {error.strerror}. Choose another runs folder."
            ) from error
        folder.write("job", {**asked, "run": run_id, "machine": machine()})
        return folder

    @classmethod
    def open(cls, runs: Path, run_id: str) -> JobFolder:
        """Raises `UnknownRunError`."""
        folder = cls(runs, run_id)
        if not folder.read("job"):
            known = sorted(path.name for path in (folder.runs / "jobs").glob("*") if path.is_dir())
            others = f"Submitted runs are {', '.join(known[-5:])}." if known else "None was submitted from here."
            raise UnknownRunError(
                f"{folder.runs} has no submitted run {run_id!r}. {others} Open the lab with the runs folder that the "
                'run was submitted from: ll.Lab(…, runs="…").'
            )
        return folder

    def read(self, name: str) -> dict[str, Any]:
        """``job``, ``begun`` or ``ended``; empty while it is not there."""
        try:
            found: dict[str, Any] = json.loads((self.path / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        unfinished = self.path / f".{name}.{os.getpid()}"
        unfinished.write_text(json.dumps(values, indent=1), encoding="utf-8")
        unfinished.replace(self.path / f"{name}.json")

    def ask_to_stop(self) -> None:
        self._stop.touch()

    @property
    def asked_to_stop(self) -> bool:
        return self._stop.exists()


def machine() -> str:
    """This machine until it boots again: processes with the same answer share memory-mapped files."""
    return _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else os.uname().nodename
