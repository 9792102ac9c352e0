"""A submitted program, run to its end without a kernel: what `job_process` does."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightning_lab.cluster import JobFolder, ProgramError, Workers
from lightning_lab.cluster.folder import machine
from lightning_lab.store import StoreError, export_run

if TYPE_CHECKING:
    from lightning_lab.notebook.lab import Lab

LOOK_S = 0.5
"""How often the job looks whether it is to stop."""
_COPY_S, _COPY_SHARE = 5.0, 0.05
"""Where the notebook cannot read the live store, a copy is made at most this often and takes this part of the time."""


class Job:
    """The job of this process."""

    current: Job | None = None

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.lab: Lab | None = None
        self._over = threading.Event()
        self._cancelled = False

    @property
    def workers(self) -> Workers | None:
        """The GPUs that it was submitted for; None for none."""
        asked = Workers(**self.folder.read("job")["workers"])
        return asked if asked.gpus else None

    @property
    def gpu_gib(self) -> float | None:
        """GiB of one of them, where that is known."""
        gib: float | None = self.folder.read("job").get("gpu_gib")
        return gib

    def claim(self, lab: Lab) -> str | None:
        """The id that the program's run was promised; the first run that trains gets it."""
        if self.lab is not None:
            return None
        self.lab = lab
        about = {"store": str(lab.store.path), "runs": str(lab.path.parent), "pid": os.getpid(), "machine": machine()}
        self.folder.write("begun", about)
        return self.folder.run_id

    def run(self) -> int:
        """The exit code. What went wrong is in ``ended.json`` and on standard error."""
        asked = self.folder.read("job")
        if Path(asked["cwd"]).is_dir():
            os.chdir(asked["cwd"])
        sys.path.insert(0, str(Path.cwd()))
        Job.current = self
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        threads = [threading.Thread(target=self._watch, daemon=True)]
        if asked["machine"] != machine():
            threads.append(threading.Thread(target=self._copy_home))
        error = ""
        for thread in threads:
            thread.start()
        try:
            asyncio.run(self._work())
        except BaseException as failure:
            traceback.print_exc()
            error = f"{type(failure).__name__}: {failure}"
        self._over.set()
        for thread in threads:
            thread.join()
        self.folder.write("ended", {"exit_code": int(bool(error)), "error": error})
        return int(bool(error))

    async def _work(self) -> None:
        """The program, then its run to the end, then the lab's."""
        try:
            rest = run_program(self.folder.program)
            if rest is not None:
                await rest
            if self.lab is None:
                raise ProgramError("The program trained nothing: it needs a line with trainer.fit(steps=…).")
            if self.lab.active_run is not None:
                await self.lab.active_run
        finally:
            if self.lab is not None:
                await asyncio.to_thread(self.lab.close)

    def _watch(self) -> None:
        """Stop the run when the notebook asks for it; cancel one that was about to begin when the job was ended."""
        while not self._over.wait(LOOK_S):
            run = self.lab.active_run if self.lab else None
            if run is not None and self._cancelled:
                run.cancel()
            elif run is not None and self.folder.asked_to_stop:
                run.stop()

    def _end(self) -> None:
        self._cancelled = True
        if self.lab is None:
            raise SystemExit("The job was ended before its run began.")
        if self.lab.active_run is not None:
            self.lab.active_run.cancel()

    def _copy_home(self) -> None:
        """For a notebook on another machine: a live store's files can be mapped on one machine only."""
        pause = _COPY_S
        while not self._over.wait(pause):
            lab = self.lab
            if lab is None or lab.closed:
                continue
            began = time.monotonic()
            with contextlib.suppress(StoreError):  # tried again; the run itself copies once more when it ends
                run_id = self.folder.run_id
                target = lab.path.parent / run_id / "store.sqlite"
                export_run(lab.store, run_id, target, manifest=lab.manifest(run_id), decode=lab.decode)
            pause = max(_COPY_S, (time.monotonic() - began) / _COPY_SHARE)


def claimed_run_id(lab: Lab) -> str | None:
    """In a job, the id of its run; None in a notebook."""
    return Job.current.claim(lab) if Job.current else None


def submitted_workers() -> Workers | None:
    """In a job, the GPUs that it was submitted for; None in a notebook."""
    return Job.current.workers if Job.current else None


def run_program(path: Path) -> Awaitable[Any] | None:
    """Like a cell: names are ``__main__``'s, and ``await`` works at the top level; then there is something to await."""
    main = ModuleType("__main__")
    main.__file__ = str(path)
    sys.modules["__main__"] = main
    code = compile(path.read_bytes(), str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, main.__dict__)
    return result if inspect.isawaitable(result) else None
