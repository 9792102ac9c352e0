"""What a run looks like now, read from the store, in the words of the panel's wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_lab.notebook.plain import finite, json_value
from lightning_lab.records import Event, Phase, Run, Step

_METRICS = (
    "reward", "entropy", "grad_norm", "approx_kl", "clip_frac", "no_signal", "ratio_mean", "ratio_max", "staleness",
    "staleness_max", "padding", "length_mean", "length_max", "tokens", "breaks", "infrastructure", "logprob_diff_max",
    "seconds_collect", "seconds_update",
)  # fmt: skip


def run_fields(run: Run) -> dict[str, Any]:
    settings = run.settings
    return {
        "id": run.id,
        "kind": run.kind,
        "state": run.state,
        "reason": json_value(run.reason),
        "created_at": run.created_at,
        "finished_at": run.finished_at,
        "steps_total": settings.get("steps"),
        "harness": json_value(settings.get("harness", "")),
        "policy": json_value(settings.get("policy", "")),
    }


def phase_fields(run: Run, last: Event | None) -> dict[str, Any]:
    """From the run's latest phase event. A run without a trainer, or one that is over, is idle."""
    data: Mapping[str, Any] = last.data if last else {}
    over = run.state != "running"
    since = last.at if last else run.created_at
    return {
        "name": str(Phase.IDLE) if over else data.get("phase", str(Phase.IDLE)),
        "since": (run.finished_at or since) if over else since,
        "step": data.get("step"),
        "version": data.get("version"),
    }


def step_fields(step: Step) -> dict[str, Any]:
    """One point of every chart. Numbers that were not computed are null."""
    return {
        "index": step.index,
        "version": step.version,
        **{name: finite(step.metrics.get(name)) for name in _METRICS},
        "rollouts": len(step.rollout_ids),
        "skipped": step.skipped,
        "seconds": round(step.finished_at - step.started_at, 3),
    }


def held_out_point(evaluation: Event) -> dict[str, Any]:
    """One held-out evaluation: after how many steps, mean reward, over how many rollouts."""
    data = evaluation.data
    return {"step": data.get("step"), "value": finite(data.get("value")), "n": data.get("n")}


def reward_fields(steps: Sequence[Step], held_out: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Reward of the latest step, the best step so far, and every held-out evaluation."""
    rewards = [value for step in steps if (value := finite(step.metrics.get("reward"))) is not None]
    return {
        "now": rewards[-1] if rewards else None,
        "best": max(rewards) if rewards else None,
        "held_out": [dict(point) for point in held_out],
    }
