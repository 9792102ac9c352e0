"""Runs as pandas frames."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from lightning_lab.notebook.merging import breaks_of
from lightning_lab.notebook.plain import well_formed
from lightning_lab.records import Rollout, Step
from lightning_lab.samples import BreakCount, Decode, count_breaks
from lightning_lab.store import COMMON, Redaction, Store

if TYPE_CHECKING:
    import pandas as pd

_ALL = 1 << 31
_ROLLOUT_COLUMNS = (
    "step", "mode", "group", "task", "harness", "state", "attempt", "outcome", "reward", "advantage", "weight",
    "effective_weight", "calls", "tokens", "queued_s", "duration_s", "output", "verdict", "error", "created_at",
)  # fmt: skip


def rollouts_frame(store: Store, rollouts: Sequence[Rollout], redaction: Redaction = COMMON) -> pd.DataFrame:
    """One line per rollout, indexed by its id, in order of creation.

    ``weight`` is the rollout's share of its step's loss, ``effective_weight`` the share that off-policy correction
    left of it. ``queued_s`` is the time from creation to start, ``duration_s`` from start to end; ``tokens`` counts
    sampled tokens. Absent numbers are NaN (``step``: ``<NA>``); secrets are replaced by ``redaction``.
    """
    import pandas as pd

    totals = store.call_totals([rollout.id for rollout in rollouts])
    effective = _effective_weights(store, {rollout.run_id for rollout in rollouts})
    lines = [_rollout_line(rollout, effective.get(rollout.id), *totals.get(rollout.id, (0, 0))) for rollout in rollouts]
    index = pd.Index([rollout.id for rollout in rollouts], name="rollout", dtype="object")
    frame = pd.DataFrame([_shown(line, redaction) for line in lines], index=index, columns=list(_ROLLOUT_COLUMNS))
    frame["step"] = frame["step"].astype("Int64")
    for name in ("reward", "advantage", "weight", "effective_weight", "queued_s", "duration_s"):
        frame[name] = frame[name].astype("float64")
    frame["created_at"] = pd.to_datetime(frame["created_at"].astype("float64"), unit="s", utc=True)
    return frame


STEP_COLUMNS = ("version", "reward", "entropy", "rollouts", "skipped", "seconds")
"""Of a run without steps; others have every stored metric besides."""


def steps_frame(steps: Sequence[Step]) -> pd.DataFrame:
    """One line per optimiser step, indexed by its number: version, every stored metric, rollouts, seconds."""
    import pandas as pd

    lines = [
        {
            "version": step.version,
            **step.metrics,
            "rollouts": len(step.rollout_ids),
            "skipped": step.skipped,
            "seconds": step.finished_at - step.started_at,
        }
        for step in steps
    ]
    index = pd.Index([step.index for step in steps], name="step")
    return pd.DataFrame(lines, index=index, columns=None if lines else [*STEP_COLUMNS])


def breaks_frame(store: Store, run_id: str | None, decode: Decode | None) -> pd.DataFrame:
    """One line per cause and harness, dearest first; of one run, or of everything that is stored.

    ``tokens_reread``: prompt tokens that were part of an open sample, or stood in their place, and were read again.
    """
    import pandas as pd

    rollouts = store.rollouts(run_id)
    breaks = breaks_of(store, rollouts, run_id, decode)
    call_ids = {name for found in breaks for name in (found.call_id, found.previous_call_id)}
    harness_of = {rollout.id: rollout.harness.name for rollout in rollouts}
    table = count_breaks(breaks, harness_of, store.call_tokens(sorted(call_ids)))
    return pd.DataFrame([asdict(row) for row in table], columns=[field.name for field in fields(BreakCount)])


def _effective_weights(store: Store, run_ids: Collection[str]) -> dict[str, float]:
    """By rollout id, as the learner told them; a step that was done again after a crash counts once."""
    weights: dict[str, float] = {}
    for run_id in run_ids:
        for event in store.events(run_id=run_id, kind="weights", limit=_ALL):
            weights.update(event.data["rollouts"])
    return weights


def _shown(line: Mapping[str, Any], redaction: Redaction) -> dict[str, Any]:
    """Texts without secrets, and as UTF-8 can hold them: frames are displayed and written to files."""
    shown = redaction.value(line)
    return {name: well_formed(value) if isinstance(value, str) else value for name, value in shown.items()}


def _rollout_line(rollout: Rollout, effective: float | None, calls: int, tokens: int) -> dict[str, Any]:
    started, finished = rollout.started_at, rollout.finished_at
    return {
        "step": rollout.step,
        "mode": rollout.mode,
        "group": rollout.group_id,
        "task": rollout.task.prompt,
        "harness": rollout.harness.name,
        "state": str(rollout.state),
        "attempt": rollout.attempt,
        "outcome": str(rollout.outcome or ""),
        "reward": rollout.reward,
        "advantage": rollout.advantage,
        "weight": rollout.weight,
        "effective_weight": effective,
        "calls": calls,
        "tokens": tokens,
        "queued_s": None if started is None else started - rollout.created_at,
        "duration_s": None if started is None or finished is None else finished - started,
        "output": rollout.output,
        "verdict": rollout.verdict,
        "error": rollout.error,
        "created_at": rollout.created_at,
    }
