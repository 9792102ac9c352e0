"""`Trainer`: a harness, tasks and a grader, ready to train in an open lab."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ulid import ULID

from lightning_lab.cluster import Workers
from lightning_lab.notebook.job import claimed_run_id, submitted_workers
from lightning_lab.notebook.lab import Lab
from lightning_lab.notebook.parts import Parts
from lightning_lab.notebook.results import checked_grader, checked_harness
from lightning_lab.notebook.resuming import earlier_run, last_state, made_with, refuse_differences
from lightning_lab.notebook.run import RunHandle
from lightning_lab.notebook.waiting import wait_for
from lightning_lab.records import Run, Sampling, Task
from lightning_lab.store import RunFolder
from lightning_lab.training import EvalResult, TrainConfig, TrainingLoop, evaluate


class Trainer:
    """Trains the lab's policy on groups of rollouts.

    ``n``: rollouts per group; ``groups``: groups per step; ``held_out`` with ``eval_every``: tasks to evaluate on
    between steps. ``settings`` are those of `lightning_lab.training.TrainConfig` (``estimator``, ``loss``,
    ``normalizer``, ``token_budget``, ``sampling`` …). Wrong ones raise `training.ConfigError` here, before any rollout.
    """

    def __init__(
        self,
        lab: Lab,
        harness: Any,
        tasks: Sequence[Task],
        grader: Any,
        *,
        n: int = 8,
        groups: int = 4,
        learning_rate: float = 1e-5,
        seed: int = 0,
        held_out: Sequence[Task] | None = None,
        eval_every: int | None = None,
        **settings: Any,
    ) -> None:
        self.lab = lab
        self.harness = checked_harness(harness)
        self.grader = checked_grader(grader)
        self.tasks = tasks
        self.held_out = held_out if held_out is not None else ()
        self._settings = {
            "n": n,
            "groups": groups,
            "learning_rate": learning_rate,
            "seed": seed,
            "eval_every": eval_every or 0,
            **settings,
        }
        self._run: RunHandle | None = None
        self.config(steps=1)

    def config(self, steps: int) -> TrainConfig:
        """The settings of a run of so many steps. Raises `training.ConfigError`."""
        return TrainConfig(steps=steps, **self._settings)

    def fit(self, steps: int, *, workers: Workers | None = None) -> RunHandle:
        """Start training in the background and return at once.

        ``workers``: the GPUs that this run needs, by default those that its cell was submitted for. The cluster that
        the lab is connected to, or this machine, must have them (`cluster.WorkersMissingError`); the memory plan is
        printed, and one that cannot fit is refused (`planning.DoesNotFitError`). Who learns on them is the policy's
        setting (``ll.Learner.verl(ranks=8)``). Raises `LabBusyError` when a run is training, `LabClosedError`,
        `training.ConfigError`, and `PolicyError` for a policy that only answers.
        """
        parts = self.lab.open_parts()
        config = self.config(steps)
        self.lab.refuse_a_second_run()
        workers = workers or submitted_workers()
        if workers is not None:
            self.lab.check_workers(workers, config)
        settings = self._described(config)
        run_id = claimed_run_id(self.lab) or str(ULID())
        run = Run(id=run_id, kind="fit", state="running", settings=settings, created_at=time.time())
        folder = self._run_folder(parts, run)
        with ExitStack() as unused:
            unused.callback(shutil.rmtree, folder.path, ignore_errors=True)
            own = replace(parts, folder=folder)
            loop = TrainingLoop(own, run, self.harness, self.tasks, self.grader, config, held_out=self.held_out)
            self._run = self.lab.start_training(run, loop)
            unused.pop_all()
        return self._run

    def resume(self, run_id: str, steps: int | None = None) -> RunHandle:
        """Go on with a run that ended early, in whatever way; ``steps`` in all, by default as many as it was to have.

        The lab must be the one the run was made in, or that one opened again (``ll.Lab(…, resume=run_id)``). From the
        latest checkpoint, or from the start where there is none: finished rollouts are used as they are, lost ones
        tried again. Raises `ResumeError` when something that decides the outcome differs, `training.CheckpointError`,
        and what `fit` raises.
        """
        parts = self.lab.open_parts()
        self.lab.refuse_a_second_run()
        run, folder = earlier_run(parts, run_id)
        config = self.config(steps or run.settings["steps"])
        hashes = self._hashes(parts)
        before = {**run.settings, "hashes": made_with(folder.manifest()["hashes"])}
        refuse_differences(run_id, before, {**self._described(config), "hashes": made_with(hashes)})
        state = last_state(parts, run, folder, hashes.get("model"))
        again = replace(run, state="running", reason="", finished_at=None, settings=self._described(config))
        loop = TrainingLoop(
            replace(parts, folder=folder),
            again,
            self.harness,
            self.tasks,
            self.grader,
            config,
            held_out=self.held_out,
            resume_from=state,
        )
        self._run = self.lab.start_training(again, loop)
        return self._run

    async def evaluate(self, tasks: Sequence[Task], n: int = 1, *, temperature: float | None = None) -> EvalResult:
        """Mean reward and its standard error over ``n`` rollouts of every task; nothing is trained.

        ``temperature``: 0 is greedy; None samples as training does.
        The rollouts belong to the trainer's latest run, if it has one. Interrupting the cell stops the waiting only.
        """
        parts, singles = self.lab.open_parts(), self.lab.singles
        run, sampling = self._run, self.config(steps=1).sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)

        def work() -> EvalResult:
            try:
                return self._evaluate(parts, run.id if run else singles.run_id, tasks, n, sampling)
            finally:
                singles.end()

        singles.begin()
        self.lab.show_run(run.id if run else singles.run_id)
        return await wait_for(self.lab.in_background(work, "evaluation"))

    def _evaluate(self, parts: Parts, run_id: str, tasks: Sequence[Task], n: int, sampling: Sampling) -> EvalResult:
        retries = self.config(steps=1).retry_rule()
        result = evaluate(parts, run_id, self.harness, tasks, self.grader, n=n, sampling=sampling, retries=retries)
        data = {"step": len(parts.store.steps(run_id)), "value": result.mean, "n": result.n, "stderr": result.stderr}
        parts.store.put_event("evaluation", run_id, data=data).result()  # who has waited for it finds it in the figure
        return result

    def _described(self, config: TrainConfig) -> dict[str, Any]:
        return {
            **config.settings(),
            "policy": self.lab.open_parts().policy.name,
            "harness": self.harness.name,
            "harness_version": self.harness.version,
            "grader": self.grader.name,
            "grader_version": self.grader.version,
            "tasks": len(self.tasks),
            **({"agl_compat": True} if self.harness.external else {}),
        }

    def _run_folder(self, parts: Parts, run: Run) -> RunFolder:
        """The run's own folder, beside the lab's: manifest, code, checkpoints, and each step's batch and plan."""
        folder = RunFolder.create(
            parts.folder.path.parent,
            run_id=run.id,
            settings=run.settings,
            harness=self.harness,
            grader=self.grader,
            seeds={"train": run.settings["seed"]},
            hashes=self._hashes(parts),
        )
        folder.write_manifest(lab=parts.folder.run_id)
        return folder

    def _hashes(self, parts: Parts) -> dict[str, str]:
        return {**parts.policy.fingerprint(), "dataset": _dataset_hash(self.tasks)}


def _dataset_hash(tasks: Sequence[Task]) -> str:
    """Task ids are derived from their content, so their order and identity are the data set's."""
    return hashlib.sha256("\n".join(task.id for task in tasks).encode()).hexdigest()
