"""One run, followed: the rollout table and the steps, kept up to date from the durable log."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from lightning_lab.gateway import AdmissionState
from lightning_lab.notebook.drivers import Drivers
from lightning_lab.notebook.frames import Snapshot
from lightning_lab.notebook.oldest import Running
from lightning_lab.notebook.problems import Marks, find_problems
from lightning_lab.notebook.rows import Merged, RolloutTable, rollout_row
from lightning_lab.notebook.snapshot import held_out_point, phase_fields, reward_fields, run_fields, step_fields
from lightning_lab.records import Event, Rollout, Run, Step
from lightning_lab.store import COMMON, Redaction, Store

_PAGE = 10_000
_KINDS = ("rollout", "step", "phase", "attempt", "tamper", "evaluation")
"""Events that change what is shown, beside those of calls, which only count."""
_READ = 2_000
"""Characters of a prompt that are looked at; a row shows fewer."""
_PROBLEMS_S, _PROBLEMS_SHARE = 2.0, 0.05
"""Problems are looked for at most this often, and take at most this part of the time."""
_NOBODY = AdmissionState(paused=False, in_flight=0, held=0)


class RunFeed:
    """Reads the events since the last `refresh`, and then only the records they name. Safe from any thread."""

    def __init__(self, store: Store, run_id: str, redaction: Redaction = COMMON) -> None:
        self.run_id = run_id
        self._redaction = redaction
        self.table = RolloutTable()
        self._store = store
        self._steps: list[Step] = []
        self._step_fields: list[Mapping[str, Any]] = []
        self._held_out: list[Mapping[str, Any]] = []
        self._phase: Event | None = None
        self._version: int | None = None
        self._marks = Marks()
        self._running = Running()
        self._drivers = Drivers(store)
        self._problems: list[dict[str, Any]] = []
        self._problems_due = 0.0
        self._problems_of: tuple[int, bool] | None = None
        self._seq = 0
        """The last event that was looked at, whatever its kind; 0 before the first look."""
        self._lock = threading.RLock()

    def refresh(self) -> None:
        """Catch up with what is committed."""
        with self._lock:
            changed, seen, upto = _Changed(), self._seq, self._store.last_event()
            if seen == upto:
                return
            for event in self._events(seen, upto):
                if event.run_id == self.run_id:
                    self._take(event, changed)
            if changed.steps:
                known = len(self._steps)
                self._steps = self._store.steps(self.run_id)
                self._step_fields = [step_fields(step) for step in self._steps]
                self._note_breaks(self._steps[known:])
                self._read_merged(self._steps[known:], changed)
            if changed.rollouts:
                self._read_rollouts(changed)
            if seen:  # at the first look all rollouts were read
                called = self._store.called(self.run_id, after=seen, upto=upto)
                self._count_calls({id_: totals for id_, totals in called.items() if id_ not in changed.rollouts})
            self._seq = upto

    def snapshot(
        self, *, lab: str, lab_state: str, admission: AdmissionState = _NOBODY, paused: bool = False
    ) -> Snapshot:
        """The run as of the last `refresh`, with the counters of the store and the gateway's of this moment."""
        with self._lock:
            run = self._redaction.record(self._store.run(self.run_id))
            return Snapshot(
                lab=lab,
                lab_state=lab_state,
                run=run_fields(run),
                phase=phase_fields(run, self._phase),
                counters={**self._store.counts(self.run_id), "in_flight": admission.in_flight, "held": admission.held},
                reward=reward_fields(self._steps, self._held_out),
                steps=tuple(self._step_fields),
                oldest=self._running.oldest(self._store, generating=admission.generating, waiting=admission.waiting),
                problems=self._find_problems(run),
                paused=paused,
            )

    def _find_problems(self, run: Run) -> list[dict[str, Any]]:
        began, active = time.monotonic(), run.state == "running"
        if self._problems_of == (self._seq, active) or (active and began < self._problems_due):
            return self._problems
        self._problems_of = None if active else (self._seq, active)  # what is stuck depends on the time, too
        self._problems = find_problems(
            self.table.rows,
            self._steps,
            self._marks,
            now=time.time() if active else None,
            failed=run.reason if run.state == "failed" else "",
            drivers=self._drivers.of,
        )
        took = time.monotonic() - began
        self._problems_due = began + max(_PROBLEMS_S, took / _PROBLEMS_SHARE)
        return self._problems

    def _note_breaks(self, steps: Sequence[Step]) -> None:
        for step in steps:
            # Most steps tell that they have none: their rollouts need not be asked for.
            for rollout_id in step.rollout_ids if step.metrics.get("breaks") != 0 else ():
                for found in self._store.breaks(rollout_id=rollout_id):
                    self._marks.breaks[str(found.cause)].append(rollout_id)

    def _read_merged(self, steps: Sequence[Step], changed: _Changed) -> None:
        for step in steps:
            sampled_by = step.version if step.skipped else step.version - 1  # the version that the step updated
            for id_, (samples, breaks, oldest) in self._store.merged(step.rollout_ids).items():
                staleness = None if oldest is None else max(0, sampled_by - oldest)
                changed.merged[id_] = Merged(samples, breaks, staleness)
                known = self.table.get(id_)
                if known is not None:
                    changed.rollouts.setdefault(id_, known.row)

    def _events(self, seen: int, upto: int) -> Iterator[Event]:
        """Those after ``seen``, up to ``upto``."""
        # Not asked for by run: the log is read in its own order, so that each event costs one look-up in its life.
        while page := self._store.events(after=seen, kind=_KINDS, limit=_PAGE):
            yield from takewhile(lambda event: event.seq <= upto, page)
            seen = page[-1].seq
            if len(page) < _PAGE or seen >= upto:
                return

    def _take(self, event: Event, changed: _Changed) -> None:
        match event.kind:
            case "rollout":
                changed.rollouts[event.subject] = int(event.data["row"])
                # Rollouts sample from the version that is published when they are created.
                changed.versions.setdefault(event.subject, self._version)
            case "step":
                changed.steps = True
            case "phase":
                self._phase, self._version = event, event.data.get("version")
            case "attempt":
                self._marks.retried[str(event.data.get("outcome"))].append(event.subject)
            case "tamper":
                self._marks.tampered.append(event.subject)
                self._marks.last_try = self._redaction.text(str(event.data.get("message", "")))
            case "evaluation":
                self._held_out.append(held_out_point(event))

    def _read_rollouts(self, changed: _Changed) -> None:
        totals = self._store.call_totals(list(changed.rollouts))
        for rollout in self._store.rollout_heads(list(changed.rollouts)):
            calls, tokens = totals.get(rollout.id, (0, 0))
            known = self.table.get(rollout.id)
            version = known.version if known else changed.versions.get(rollout.id)
            merged = changed.merged.get(rollout.id) or (known.merged if known else Merged())
            place, shown = changed.rollouts[rollout.id], self._shown(rollout)
            row = rollout_row(place, shown, calls=calls, tokens=tokens, version=version, merged=merged)
            self.table.put(row)
            self._running.put(row)

    def _count_calls(self, totals: Mapping[str, tuple[int, int]]) -> None:
        """Of rollouts of which nothing else has changed."""
        for id_, (calls, tokens) in totals.items():
            known = self.table.get(id_)
            if known is not None:
                row = replace(known, calls=calls, tokens=tokens)
                self.table.put(row)
                self._running.put(row)

    def _shown(self, rollout: Rollout) -> Rollout:
        prompt = self._redaction.text(rollout.task.prompt[:_READ])  # before a row cuts a secret in two
        if prompt == rollout.task.prompt:
            return rollout
        return replace(rollout, task=replace(rollout.task, prompt=prompt))


class _Changed:
    """What a batch of events touches."""

    def __init__(self) -> None:
        self.rollouts: dict[str, int] = {}
        self.versions: dict[str, int | None] = {}
        self.merged: dict[str, Merged] = {}
        self.steps = False
