"""Rollouts that `lab.run` starts, and the one run record that holds them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ulid import ULID

from lightning_lab.harnesses import Harness
from lightning_lab.notebook.parts import Parts
from lightning_lab.records import Rollout, RolloutState, Run, Task
from lightning_lab.tasks import Grader


class SingleRollouts:
    """Started one by one, without a trainer. Their run is ``running`` while any of them is. Thread-safe."""

    def __init__(self, parts: Parts, settings: Mapping[str, Any]) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._work = 0
        self._run = Run(
            id=str(ULID()), kind="single", state="finished", settings=dict(settings), created_at=time.time()
        )

    @property
    def run_id(self) -> str:
        return self._run.id

    @property
    def open(self) -> int:
        """Rollouts and evaluations under way."""
        return self._work

    def start(self, harness: Harness, task: Task, grader: Grader | None) -> Future[Rollout]:
        """Queue one rollout in mode ``single``."""
        rollout_id = f"r-{ULID()}"
        rollout = Rollout(
            id=rollout_id,
            run_id=self.run_id,
            group_id=f"s-{rollout_id}",
            task=task,
            harness=harness.info,
            mode="single",
            state=RolloutState.QUEUING,
            created_at=time.time(),
        )
        self.begin()
        try:
            future = self._parts.controller.submit(rollout, harness, grader)
        except BaseException:
            self.end()
            raise
        if harness.external:
            with self._lock:
                self._put(settings={**self._run.settings, "agl_compat": True})
        future.add_done_callback(lambda _: self.end())
        return future

    def begin(self) -> None:
        """Something of this run starts: a rollout, or an evaluation outside a training run."""
        with self._lock:
            self._work += 1
            if self._work == 1:
                self._put(state="running", finished_at=None).result()

    def end(self) -> None:
        with self._lock:
            self._work -= 1
            if self._work == 0:
                self._put(state="finished", finished_at=time.time())

    def _put(self, **changes: Any) -> Future[int]:
        self._run = replace(self._run, **changes)
        return self._parts.store.put_run(self._run)
