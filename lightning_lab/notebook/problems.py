"""What is wrong with a run, ranked: each finding names its evidence. Pure; reads rows and steps, no store."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_lab.notebook.plain import finite
from lightning_lab.notebook.rows import RolloutRow
from lightning_lab.records import INFRASTRUCTURE_OUTCOMES, Outcome, Step

MAX_EVIDENCE = 40
"""Rollouts or groups that a finding names; the count is whole."""
MAX_FINDINGS = 12
STUCK_FACTOR, STUCK_S = 5.0, 60.0
"""A rollout is stuck when it runs longer than this many medians, and than this many seconds."""
RECENT_STEPS = 5
NO_SIGNAL_SHARE = 0.3
MISMATCH = 0.05
"""Nats between the sampler's log-probs and the learner's that rounding does not explain."""
SPIKE_FACTOR = 6.0
DRIVERS = 5
"""Rollouts that are named as what made a spike."""
_SPIKES = {
    "approx_kl": ("KL", 1e-3, "kl"),
    "clip_frac": ("clip fraction", 0.05, "clip"),
    "ratio_max": ("ratio", 2.0, "ratio"),
    "grad_norm": ("gradient norm", 1e-2, ""),
}
"""Metrics that are watched: their name, the least value that counts as a spike, and what its tokens are looked at by
(one of `drivers.MEASURES`)."""

_FAILURES = (Outcome.AGENT_ERROR, Outcome.TIMEOUT, Outcome.CONTEXT_OVERFLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    kind: str
    """``tamper``, ``mismatch``, ``failed``, ``infrastructure``, ``stuck``, ``failure``, ``no_signal``, ``spike``,
    ``skipped``, ``retried`` or ``break``."""
    severity: int
    """3: the run's numbers are in doubt; 2: work is lost; 1: worth knowing."""
    title: str
    detail: str
    count: int
    rollouts: Sequence[str] = ()
    groups: Sequence[str] = ()
    step: int | None = None
    shade: str = ""
    """The colouring of tokens that shows it: one of `drivers.MEASURES`."""

    def fields(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.severity,
            "title": self.title,
            "detail": self.detail,
            "count": self.count,
            "rollouts": list(self.rollouts[:MAX_EVIDENCE]),
            "groups": list(self.groups[:MAX_EVIDENCE]),
            "step": self.step,
            "shade": self.shade,
        }


Drivers = Callable[[Step, str], Sequence[tuple[str, float]]]
"""Rollouts of a step with their share of a measure, largest first."""


@dataclass(slots=True)
class Marks:
    """What only the log and the breaks tell, collected as it comes."""

    breaks: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Rollouts by the cause of their breaks, once per break."""
    tampered: list[str] = field(default_factory=list)
    """Rollouts whose keys were used for more than model calls, once per try."""
    last_try: str = ""
    """The latest of these, in a sentence."""
    retried: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Rollouts by the outcome of attempts that were made again, once per attempt."""


def find_problems(
    rows: Sequence[RolloutRow],
    steps: Sequence[Step],
    marks: Marks,
    *,
    now: float | None = None,
    failed: str = "",
    drivers: Drivers = lambda *_: (),
) -> list[dict[str, Any]]:
    """Worst first. ``now``: Unix seconds while the run goes on, else None: nothing is stuck in a run that is over.

    ``failed``: why the run ended before its last step. ``drivers`` is asked for steps that spike.
    """
    found = [
        *_tamper(marks),
        *_failed(failed),
        *_mismatch(steps),
        *_outcomes(rows),
        *(_stuck(rows, now) if now is not None else ()),
        *_no_signal(rows, steps),
        *_spikes(steps, drivers),
        *_skipped(steps),
        *_retried(marks),
        *_breaks(marks),
    ]
    found.sort(key=lambda problem: (-problem.severity, -problem.count))
    return [problem.fields() for problem in found[:MAX_FINDINGS]]


def _tamper(marks: Marks) -> Iterable[Problem]:
    if marks.tampered:
        detail = "An agent reached for what it may not touch; look at it before trusting its rewards. "
        detail += marks.last_try
        rollouts = tuple(dict.fromkeys(marks.tampered))
        yield Problem(
            kind="tamper", severity=3, title="Tampering", detail=detail, count=len(marks.tampered), rollouts=rollouts
        )


def _failed(reason: str) -> Iterable[Problem]:
    if reason:
        detail = reason.strip().splitlines()[0]
        yield Problem(kind="failed", severity=3, title="The run ended early", detail=detail, count=1)


def _retried(marks: Marks) -> Iterable[Problem]:
    for outcome, ids in marks.retried.items():
        rollouts = tuple(dict.fromkeys(reversed(ids)))
        detail = f"{_many(len(ids), 'attempt')} of {_many(len(rollouts), 'rollout')} failed and began anew."
        title = f"Tried again: {outcome.replace('_', ' ')}"
        yield Problem(kind="retried", severity=1, title=title, detail=detail, count=len(ids), rollouts=rollouts)


def _mismatch(steps: Sequence[Step]) -> Iterable[Problem]:
    worst = max(steps, key=_logprob_gap, default=None)
    value = _logprob_gap(worst) if worst else 0.0
    if worst and value > MISMATCH:
        count = sum(_logprob_gap(step) > MISMATCH for step in steps)
        detail = f"Sampler and learner differ by up to {value:.3g} nats per token (worst: step {worst.index})."
        yield Problem(
            kind="mismatch", severity=3, title="Log-prob mismatch", detail=detail, count=count, step=worst.index
        )


def _logprob_gap(step: Step) -> float:
    """On what was learned from, and where servers were asked after the publish on what they said then."""
    return max(step.metrics.get(name, 0.0) for name in ("logprob_diff_max", "parity_logprob_max"))


def _outcomes(rows: Sequence[RolloutRow]) -> Iterable[Problem]:
    by_outcome: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.outcome:
            by_outcome[row.outcome].append(row.id)
    for outcome in sorted(INFRASTRUCTURE_OUTCOMES - {Outcome.CANCELLED}):
        if ids := by_outcome.get(outcome):
            detail = f"{_of(len(ids), len(rows))} ended for reasons that say nothing about the agent; no reward."
            title = f"Infrastructure: {outcome.value.replace('_', ' ')}"
            yield Problem(
                kind="infrastructure", severity=2, title=title, detail=detail, count=len(ids), rollouts=_latest(ids)
            )
    for outcome in _FAILURES:
        if ids := by_outcome.get(outcome):
            detail = f"{_of(len(ids), len(rows))} ended this way."
            title = f"Agent: {outcome.value.replace('_', ' ')}"
            severity = 2 if len(ids) * 5 > len(rows) else 1
            yield Problem(
                kind="failure", severity=severity, title=title, detail=detail, count=len(ids), rollouts=_latest(ids)
            )


def _stuck(rows: Sequence[RolloutRow], now: float) -> Iterable[Problem]:
    took = [row.finished_at - row.started_at for row in rows[-1000:] if row.finished_at and row.started_at]
    usual = statistics.median(took) if took else STUCK_S / STUCK_FACTOR
    limit = max(STUCK_S, STUCK_FACTOR * usual)
    ids = [row.id for row in rows if row.state == "running" and row.started_at and now - row.started_at > limit]
    if ids:
        detail = f"Running for more than {limit:.0f} s; the median rollout takes {usual:.1f} s."
        yield Problem(kind="stuck", severity=2, title="Stuck rollouts", detail=detail, count=len(ids), rollouts=ids)


def _no_signal(rows: Sequence[RolloutRow], steps: Sequence[Step]) -> Iterable[Problem]:
    recent = {step.index for step in steps[-RECENT_STEPS:]}
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.step in recent and row.mode == "train" and row.reward is not None:
            groups[row.group].append(row.reward)
    flat = [name for name, rewards in groups.items() if len(rewards) > 1 and max(rewards) - min(rewards) <= 1e-6]
    if groups and len(flat) / len(groups) >= NO_SIGNAL_SHARE:
        share = _of(len(flat), len(groups), "groups")
        detail = f"{share} of the last {len(recent)} steps have equal rewards: nothing to learn."
        yield Problem(
            kind="no_signal", severity=1, title="Groups without signal", detail=detail, count=len(flat), groups=flat
        )


def _spikes(steps: Sequence[Step], drivers: Drivers) -> Iterable[Problem]:
    for name, (label, least, shade) in _SPIKES.items():
        told = [(step, value) for step in steps if (value := finite(step.metrics.get(name))) is not None]
        if len(told) < RECENT_STEPS:
            continue
        usual = statistics.median(value for _, value in told)
        high = [(step, value) for step, value in told if value > max(least, SPIKE_FACTOR * usual)]
        if high:
            step, value = max(high, key=lambda pair: pair[1])
            detail = f"Step {step.index}: {value:.3g}, against a median of {usual:.3g}."
            shares = drivers(step, shade)[:DRIVERS] if shade else ()
            if shares and name != "ratio_max":  # which is one token's, not a sum
                detail += f" {_many(len(shares), 'rollout')} made {sum(share for _, share in shares):.0%} of it."
            yield Problem(
                kind="spike",
                severity=1,
                title=f"Spike of the {label}",
                detail=detail,
                count=len(high),
                rollouts=[rollout_id for rollout_id, _ in shares],
                step=step.index,
                shade=shade,
            )


def _skipped(steps: Sequence[Step]) -> Iterable[Problem]:
    by_reason: dict[str, list[int]] = defaultdict(list)
    for step in steps:
        if step.skipped:
            by_reason[step.skipped].append(step.index)
    for reason, indices in by_reason.items():
        detail = f"{_of(len(indices), len(steps), 'steps')} made no update: {reason.replace('_', ' ')}."
        yield Problem(
            kind="skipped", severity=1, title="Skipped steps", detail=detail, count=len(indices), step=indices[-1]
        )


def _breaks(marks: Marks) -> Iterable[Problem]:
    for cause, ids in marks.breaks.items():
        rollouts = tuple(dict.fromkeys(reversed(ids)))
        detail = f"{_many(len(ids), 'call')} of {_many(len(rollouts), 'rollout')} could not continue a sample."
        title = f"Breaks: {cause.replace('_', ' ')}"
        yield Problem(kind="break", severity=1, title=title, detail=detail, count=len(ids), rollouts=rollouts)


def _latest(ids: Sequence[str]) -> Sequence[str]:
    return ids[: -MAX_EVIDENCE - 1 : -1]


def _of(part: int, whole: int, what: str = "rollouts") -> str:
    return f"{part:,} of {whole:,} {what}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
