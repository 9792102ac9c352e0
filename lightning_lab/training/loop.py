"""The training loop, one for both schedules (`window`): collect groups, update, publish.

collecting (→ staleness_wait) → closing → draining → updating → publishing → collecting … → idle; every change is an
event in the store.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import cast

from lightning_lab.harnesses import Harness
from lightning_lab.policy.base import ChecksSamples, Learner, LossRow, PolicyError, SampleError, UpdateResult
from lightning_lab.records import Phase, Run, Task
from lightning_lab.samples import SampleSet, build_samples
from lightning_lab.tasks import Grader
from lightning_lab.training.batch import Batch, build_batch
from lightning_lab.training.checkpoint import LoopState, save_checkpoint
from lightning_lab.training.collecting import CollectingCancelled, Collector, Group
from lightning_lab.training.config import ConfigError, TrainConfig
from lightning_lab.training.evaluation import evaluate
from lightning_lab.training.failures import FirstGroups, InfrastructureShare
from lightning_lab.training.parts import LabParts
from lightning_lab.training.recording import Recorder
from lightning_lab.training.resuming import group_name, latest_version, open_groups
from lightning_lab.training.schedule import task_at
from lightning_lab.training.updates import combined

logger = logging.getLogger(__name__)


class TrainingLoop:
    """One run. `run` blocks and belongs into a thread of its own; the other methods may be called from any thread."""

    def __init__(
        self,
        parts: LabParts,
        run: Run,
        harness: Harness,
        tasks: Sequence[Task],
        grader: Grader,
        config: TrainConfig,
        *,
        held_out: Sequence[Task] = (),
        resume_from: LoopState | None = None,
    ) -> None:
        """Raises `ConfigError` or `PolicyError` when the run could never make a step."""
        if not parts.policy.can_learn:
            raise PolicyError(f"The policy {parts.policy.name!r} only answers; training needs one that learns.")
        if not len(tasks):
            raise ConfigError("There are no tasks to train on. Pass a task set that is not empty.")
        if config.eval_every and not len(held_out):
            raise ConfigError("eval_every is set, but there are no held-out tasks. Pass held_out=..., or eval_every=0.")
        config.check_loss()
        self.error: BaseException | None = None
        """What ended the run in state ``failed``."""
        self._parts = parts
        self._run = run
        self._harness = harness
        self._tasks = tasks
        self._grader = grader
        self._config = config
        self._held_out = held_out
        self._step = resume_from.step if resume_from else 0
        self._cursor = resume_from.cursor if resume_from else 0
        self._store_seq = resume_from.store_seq if resume_from else 0
        self._resumes = resume_from is not None
        self._version = latest_version(parts.store, run.id) if resume_from else 0
        self._records = Recorder(parts, run.id, steps_total=config.steps)
        self._first_groups = FirstGroups()
        self._infrastructure = InfrastructureShare(config.infrastructure_limit, config.infrastructure_window)
        self._stop = threading.Event()
        self._cancelled = False
        self._lock = threading.Lock()
        self._window = config.window()
        self._taken = self._step
        """Steps whose groups were taken out of the window."""
        self._fresh_version = 0
        """No token of a group that begins now is older."""
        self._meanwhile = ThreadPoolExecutor(1, thread_name_prefix="lightning-lab-meanwhile")
        self._complete: dict[str, tuple[Group, dict[str, SampleSet]]] = {}
        """Groups that no update has consumed yet, by id."""
        self._collectors: list[Collector] = []

    @property
    def learner(self) -> Learner:
        return cast(Learner, self._parts.policy)

    def request_stop(self) -> None:
        """Finish the step that is under way, then end."""
        self._stop.set()

    def cancel(self) -> None:
        """Cancel the rollouts now and end without finishing the step. An update that runs is finished."""
        with self._lock:
            self._cancelled = True
            self._stop.set()
            collectors = list(self._collectors)
        for collector in collectors:
            collector.cancel()

    def run(self) -> Run:
        """Train; returns the run's final record, which is committed by then. Never raises for what a run can meet."""
        self._parts.store.put_run(self._run)
        try:
            state, reason = self._train()
        except CollectingCancelled:
            state, reason = "stopped", f"Cancelled during step {self._step}."
        except BaseException as error:
            logger.info("The run %s failed", self._run.id, exc_info=True)
            self.error = error
            state, reason = "failed", _describe(error)
        return self._finish(state, reason)

    def _train(self) -> tuple[str, str]:
        config = self._config
        self._evaluate_if(config.eval_every > 0 and self._step == 0)
        collector = self._new_collector()
        try:
            self._take_up(collector)
            while self._step < config.steps and not self._stop.is_set():
                self._make_step(collector)
                self._step += 1
                last = self._step == config.steps or self._stop.is_set()
                self._evaluate_if(config.eval_every > 0 and (last or self._step % config.eval_every == 0))
                if config.checkpoint_every and (last or self._step % config.checkpoint_every == 0):
                    self._save()
        finally:
            collector.abandon()
            self._meanwhile.shutdown()
        if self._step < config.steps:
            return "stopped", f"Stopped on request after {self._step} of {config.steps} steps."
        return "finished", ""

    def _take_up(self, collector: Collector) -> None:
        """Go on with the groups that an earlier process had begun and no step of the checkpoint consumed."""
        if not self._resumes:
            return
        store, run_id, version = self._parts.store, self._run.id, self._parts.policy.version
        for group in open_groups(store, run_id, step=self._step, n=self._config.n, version=version):
            for rollout in group.lost:
                self._records.lost(rollout)
            self._window.submitted(group.id, group.version)
            collector.take_up(group)
            self._cursor = max(self._cursor, group.cursor + 1)

    def _make_step(self, collector: Collector) -> None:
        started_at = time.time()
        self._phase(Phase.COLLECTING)
        groups, sample_sets = self._collect(collector)
        told = {"carried_over": float(len(self._window)), "seconds_collect": time.time() - started_at}
        with self._groups_go_on(collector) as going_on:
            self._learn_from(groups, sample_sets, told, started_at)
        going_on.result()  # what went wrong beside it ends the run after the step is stored

    def _learn_from(
        self, groups: list[Group], sample_sets: dict[str, SampleSet], told: Mapping[str, float], started_at: float
    ) -> None:
        """Update, where there is something to learn, and store the step. ``told``: further metrics."""
        batch = build_batch(groups, sample_sets, self._config, self._step, self._parts.policy.version)
        metrics = {**batch.metrics, **told, "breaks": float(len(batch.breaks))}
        skipped = batch.skipped or self._unusable(batch)
        if not skipped:
            learned = self._update(batch)
            skipped = "non_finite_gradient" if learned.pop("skipped", 0.0) else ""
            metrics = {**learned, **metrics}
        self._store_seq = self._records.step(self._step, batch, metrics, skipped, started_at)

    def _collect(self, collector: Collector) -> tuple[list[Group], dict[str, SampleSet]]:
        """The groups of one update, whole, oldest first, whatever the order in which they completed."""
        version = self._fresh_version = self._parts.policy.version
        waits = False
        self._submit_groups(collector)
        while not self._window.enough or (late := self._window.too_old_to_leave(version)):
            if self._window.enough and not waits:
                self._phase(Phase.STALENESS_WAIT, groups=late)
                waits = True
            self._receive(collector)
        taken = [self._complete.pop(group_id) for group_id in self._window.take(version)]
        self._taken += 1
        groups = [group for group, _ in taken]
        return groups, {rollout_id: made for _, sets in taken for rollout_id, made in sets.items()}

    def _submit_groups(self, collector: Collector) -> None:
        for _ in range(self._window.room(self._config.steps - self._taken)):
            group_id = group_name(self._run.id, self._cursor)
            task = self._tasks[task_at(self._cursor, len(self._tasks), self._config.seed)]
            self._window.submitted(group_id, self._fresh_version)
            collector.submit(group_id, task, self._config.n)
            self._cursor += 1

    def _receive(self, collector: Collector) -> None:
        """Wait for a rollout to end; its place is taken by another one."""
        ended = collector.next()
        if ended is None:
            return
        self._window.ended(ended.group_id)
        self._submit_groups(collector)  # first: agents start while samples are made
        if ended.group is not None:
            self._complete[ended.group_id] = (ended.group, self._samples_of(ended.group))

    @contextlib.contextmanager
    def _groups_go_on(self, collector: Collector) -> Iterator[Future[None]]:
        """Beside a step: rollouts that end make room for others, whose processes start while calls are held."""
        over = threading.Event()

        def receive() -> None:
            while len(self._window) and not over.is_set():
                self._receive(collector)

        going_on = self._meanwhile.submit(receive)
        try:
            yield going_on
        finally:
            over.set()
            collector.wake()
            wait([going_on])

    def _samples_of(self, group: Group) -> dict[str, SampleSet]:
        """Done while other groups still run. Raises `TrainingStopped` by the rules in `failures`."""
        sample_sets: dict[str, SampleSet] = {}
        calls: dict[str, int] = {}
        for rollout in group.rollouts:
            made = self._parts.store.calls(rollout.id, attempt=rollout.attempt)
            calls[rollout.id] = len(made)
            sample_sets[rollout.id] = build_samples(
                made, self._parts.policy.decode, merge=self._config.merge, kinds=self._config.call_kinds
            )
        self._first_groups.observe(group, calls)
        self._infrastructure.observe(group)
        return sample_sets

    def _unusable(self, batch: Batch) -> str:
        """Why the learner can make nothing of the batch, found out before anything changes; empty if it can."""
        if not isinstance(self.learner, ChecksSamples):
            return ""
        try:
            self.learner.check([row for update in batch.updates for rows in update for row in rows])
        except SampleError as error:
            self._records.warning(f"Step {self._step} was skipped. {error}")
            return error.reason
        return ""

    def _update(self, batch: Batch) -> dict[str, float]:
        """Update and publish while requests are held; they go on whatever happens here. Returns the learner's metrics.

        A learner that met a gradient which is not finite changes nothing and says so with ``skipped`` = 1; publishing
        the same weights once more does no harm.
        """
        self._phase(Phase.CLOSING)
        started = time.perf_counter()
        try:
            self._phase(Phase.DRAINING)
            report = self._parts.gateway.pause(deadline_s=self._config.drain_s, mode=self._config.pause)
            version = self._version = self._fresh_version = max(self._version, self._parts.policy.version) + 1
            self._phase(Phase.UPDATING)
            result = combined([self._learn(micro_batches) for micro_batches in batch.updates])
            self._phase(Phase.PUBLISHING)
            published = self.learner.publish(version)
        finally:
            self._parts.gateway.resume()
        self._records.learned(self._step, version, batch, result)
        paused = {"seconds_update": time.perf_counter() - started, "aborted": float(report.aborted)}
        metrics = {**result.metrics, **published, **paused}
        return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}

    def _learn(self, micro_batches: Sequence[Sequence[LossRow]]) -> UpdateResult:
        return self.learner.update(
            micro_batches,
            loss=self._config.loss,
            options=self._config.learner_options(),
            learning_rate=self._config.learning_rate,
        )

    def _evaluate_if(self, due: bool) -> None:
        if not due or self._cancelled:
            return
        self._phase(Phase.COLLECTING)
        result = evaluate(
            self._parts,
            self._run.id,
            self._harness,
            self._held_out,
            self._grader,
            n=self._config.eval_n,
            sampling=self._config.sampling,
            retries=self._config.retry_rule(),
            on_collector=self._watch,
        )
        if result.n:
            self._records.evaluation(self._step, result)

    def _save(self) -> None:
        self._parts.store.flush()  # the groups that the cursor counts are found there by who resumes
        state = LoopState(
            step=self._step,
            cursor=self._cursor,
            version=self._parts.policy.version,
            seed=self._config.seed,
            store_seq=self._store_seq,
            run_id=self._run.id,
        )
        save_checkpoint(self.learner, state, self._parts.folder.checkpoints, keep=self._config.keep_checkpoints)

    def _new_collector(self) -> Collector:
        collector = Collector(
            self._parts.controller,
            self._run.id,
            self._harness,
            self._grader,
            mode="train",
            sampling=self._config.sampling,
            retries=self._config.retry_rule(),
        )
        self._watch(collector)
        return collector

    def _watch(self, collector: Collector) -> None:
        """From here on, `cancel` reaches this collection."""
        with self._lock:
            if self._cancelled:
                raise CollectingCancelled
            self._collectors.append(collector)

    def _phase(self, phase: Phase, **details: object) -> None:
        self._records.phase(phase, self._step, **details)

    def _finish(self, state: str, reason: str) -> Run:
        final = replace(self._run, state=state, reason=reason, finished_at=time.time())
        try:
            self._phase(Phase.IDLE)
            self._records.end(final)
        except Exception as error:  # the store is gone; the caller still learns how the run ended
            logger.exception("The end of run %s could not be stored", self._run.id)
            self.error = self.error or error
        return final


def _describe(error: BaseException) -> str:
    """Our own errors speak for themselves; a stranger's needs its name."""
    own = type(error).__module__.startswith("lightning_lab.")
    return str(error) if own and str(error) else f"{type(error).__name__}: {error}"
