"""What a run leaves in the store and in its folder while it goes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from lightning_lab.policy.base import UpdateResult
from lightning_lab.records import Floats, Outcome, Phase, Rollout, Run, Step
from lightning_lab.store import export_run
from lightning_lab.training.batch import Batch
from lightning_lab.training.evaluation import EvalResult
from lightning_lab.training.parts import LabParts

STAT_NAMES = ("entropy", "logprobs", "ratio", "clipped", "loss")


class Recorder:
    """Writes for one run. Events are in the store's order; what must be there before the loop goes on is waited for."""

    def __init__(self, parts: LabParts, run_id: str, *, steps_total: int) -> None:
        self._parts, self._store, self._run_id = parts, parts.store, run_id
        self._steps_total = steps_total

    def phase(self, phase: Phase, step: int, **details: object) -> None:
        """What the loop does from now on."""
        version = self._parts.policy.version
        data = {**details, "phase": phase.value, "step": step, "version": version, "steps_total": self._steps_total}
        self._store.put_event("phase", self._run_id, data=data)

    def warning(self, message: str) -> None:
        self._store.put_event("log", self._run_id, data={"level": "warning", "message": message})

    def lost(self, rollout: Rollout) -> None:
        """An attempt that was under way when an earlier process ended; ``rollout`` is the one that takes its place."""
        data = {
            "attempt": rollout.attempt - 1,
            "outcome": Outcome.LOST.value,
            "error": "The process that ran it has ended.",
        }
        self._store.put_event("attempt", self._run_id, rollout.id, data)

    def learned(self, step: int, version: int, batch: Batch, result: UpdateResult) -> None:
        """A version that was published, and what made it."""
        self._store.put_event("policy", self._run_id, data={"version": version})
        if result.tokens:
            for place, tokens in zip(batch.places, result.tokens, strict=True):
                stats: dict[str, Floats] = {name: getattr(tokens, name) for name in STAT_NAMES}
                self._store.put_token_stats(self._run_id, step, place.rollout_id, place.sample_index, stats)
        self._store.put_event("weights", self._run_id, str(step), {"rollouts": dict(result.rollout_weights)})

    def step(self, step: int, batch: Batch, metrics: Mapping[str, float], skipped: str, started_at: float) -> int:
        """A step and all that it consumed; the seq of its event, once that is committed."""
        self._store.put_samples(self._run_id, step, batch.samples, batch.breaks)
        for rollout in batch.rollouts:
            self._store.put_rollout(rollout)
        done = self._store.put_step(
            Step(
                run_id=self._run_id,
                index=step,
                version=self._parts.policy.version,
                rollout_ids=tuple(rollout.id for rollout in batch.rollouts),
                metrics=metrics,
                started_at=started_at,
                finished_at=time.time(),
                skipped=skipped,
            )
        )
        seq = done.result()  # a step that cannot be stored must not be followed by another
        rows, plan = batch.consumed()
        self._parts.folder.record_step(step, rows, micro_batches=plan)
        return seq

    def evaluation(self, step: int, result: EvalResult) -> None:
        data = {"step": step, "value": result.mean, "n": result.n, "stderr": result.stderr}
        self._store.put_event("evaluation", self._run_id, data=data)

    def end(self, run: Run) -> None:
        """The final record, and the run's own part of the lab's store into its folder."""
        self._store.put_run(run).result()
        folder = self._parts.folder
        export_run(self._store, run.id, folder.store_path, manifest=folder.manifest())
