"""How good is the policy now? Rollouts that train nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from ulid import ULID

from lightning_lab.harnesses import Harness
from lightning_lab.records import HarnessInfo, Rollout, Sampling, Task
from lightning_lab.tasks import Grader
from lightning_lab.training.collecting import Collector
from lightning_lab.training.parts import LabParts
from lightning_lab.training.rewards import is_infrastructure, valid_reward


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """Mean reward over the rollouts that have a valid one."""

    mean: float
    """NaN when no rollout has a valid reward."""
    n: int
    """Rollouts with a valid reward."""
    stderr: float
    """Standard error of the mean; NaN for fewer than two."""
    infrastructure: int
    """Rollouts left out because the infrastructure failed."""
    no_reward: int
    """Other rollouts without a valid reward."""
    outcomes: Mapping[str, int]
    """All rollouts by outcome."""
    version: int
    """The policy version at the start."""
    harness: HarnessInfo = field(repr=False)
    rollouts: tuple[Rollout, ...] = field(repr=False)


def evaluate(
    parts: LabParts,
    run_id: str,
    harness: Harness,
    tasks: Sequence[Task],
    grader: Grader,
    *,
    n: int = 1,
    temperature: float = 1.0,
    on_collector: Callable[[Collector], None] | None = None,
) -> EvalResult:
    """Run n rollouts of every task in mode ``eval`` and wait for them. Blocking.

    ``on_collector`` gets the collection before it starts, so that another thread can cancel it.
    Raises ValueError without tasks, `CollectingCancelled` when cancelled.
    """
    if not len(tasks) or n < 1:
        raise ValueError(f"Nothing to evaluate: {len(tasks)} tasks, {n} rollouts each. Pass at least one of both.")
    version = parts.policy.version
    sampling = Sampling(temperature=temperature)
    collector = Collector(parts.controller, run_id, harness, grader, mode="eval", sampling=sampling)
    if on_collector is not None:
        on_collector(collector)
    try:
        for task in tasks:
            collector.submit(f"e-{ULID()}", task, n)
        rollouts = [rollout for group in collector.completed() for rollout in group.rollouts]
    except BaseException:
        collector.abandon()
        raise
    return _summary(rollouts, version, harness.info)


def _summary(rollouts: Sequence[Rollout], version: int, harness: HarnessInfo) -> EvalResult:
    rewards = np.array([r for rollout in rollouts if (r := valid_reward(rollout)) is not None], np.float64)
    infrastructure = sum(is_infrastructure(rollout) for rollout in rollouts)
    return EvalResult(
        mean=float(rewards.mean()) if len(rewards) else math.nan,
        n=len(rewards),
        stderr=float(rewards.std(ddof=1) / math.sqrt(len(rewards))) if len(rewards) > 1 else math.nan,
        infrastructure=infrastructure,
        no_reward=len(rollouts) - len(rewards) - infrastructure,
        outcomes=dict(Counter(str(rollout.outcome) for rollout in rollouts)),
        version=version,
        harness=harness,
        rollouts=tuple(rollouts),
    )
