"""How good is the policy now? Rollouts that train nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from ulid import ULID

from lightning_lab.algorithms.advantages import FloatArray
from lightning_lab.controller.retries import NEVER, Retries
from lightning_lab.harnesses import Harness
from lightning_lab.records import HarnessInfo, Rollout, Sampling, Task
from lightning_lab.tasks import Grader
from lightning_lab.training.collecting import Collector
from lightning_lab.training.parts import LabParts
from lightning_lab.training.rewards import is_infrastructure, valid_reward

_RESAMPLES = 10_000


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

    def pass_at(self, k: int, *, success: float = 1.0) -> float:
        """Chance that at least one of ``k`` rollouts of a task succeeds, averaged over tasks; in [0, 1].

        A rollout succeeds with a reward of at least ``success``. Unbiased for every k up to a task's valid rollouts:
        1 - C(n - c, k) / C(n, k) with c successes of n (Chen et al. 2021, arXiv 2107.03374, eq. 1). Tasks with
        fewer than ``k`` valid rollouts are left out. Raises ValueError when none is left.
        """
        chances = [
            1.0 - math.comb(len(rewards) - wins, k) / math.comb(len(rewards), k)
            for rewards, wins in ((r, int(np.count_nonzero(r >= success))) for r in self._rewards_by_task())
            if len(rewards) >= k >= 1
        ]
        if not chances:
            raise ValueError(f"No task has {k} rollouts with a valid reward. Evaluate with n={max(k, 1)} or more.")
        return float(np.mean(chances))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Bootstrap interval of ``mean`` over tasks: percentiles of 10,000 resamples, the same for the same result.

        Tasks are drawn, not rollouts: those of one task are not independent. NaN without valid rewards.
        """
        tasks = self._rewards_by_task()
        if not tasks:
            return math.nan, math.nan
        sums, counts = np.array([rewards.sum() for rewards in tasks]), np.array([len(rewards) for rewards in tasks])
        drawn = np.random.default_rng(0).multinomial(len(tasks), np.full(len(tasks), 1 / len(tasks)), size=_RESAMPLES)
        low, high = np.quantile((drawn @ sums) / (drawn @ counts), [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def by(self, name: str) -> dict[str, EvalResult]:
        """The same per value of a task's field, e.g. ``result.by("source_dataset")``. Raises KeyError."""
        parts: dict[str, list[Rollout]] = {}
        for rollout in self.rollouts:
            parts.setdefault(str(rollout.task.fields[name]), []).append(rollout)
        return {value: _summary(parts[value], self.version, self.harness) for value in sorted(parts)}

    def _rewards_by_task(self) -> list[FloatArray]:
        rewards: dict[str, list[float]] = {}
        for rollout in self.rollouts:
            if (reward := valid_reward(rollout)) is not None:
                rewards.setdefault(rollout.task.id, []).append(reward)
        return [np.array(values, np.float64) for values in rewards.values()]


def evaluate(
    parts: LabParts,
    run_id: str,
    harness: Harness,
    tasks: Sequence[Task],
    grader: Grader,
    *,
    n: int = 1,
    sampling: Sampling | None = None,
    retries: Retries = NEVER,
    on_collector: Callable[[Collector], None] | None = None,
) -> EvalResult:
    """Run n rollouts of every task in mode ``eval`` and wait for them; ``sampling`` with temperature 0 is greedy.
    Blocking.

    ``on_collector`` gets the collection before it starts, so that another thread can cancel it.
    Raises ValueError without tasks, `CollectingCancelled` when cancelled.
    """
    if not len(tasks) or n < 1:
        raise ValueError(f"Nothing to evaluate: {len(tasks)} tasks, {n} rollouts each. Pass at least one of both.")
    version = parts.policy.version
    collector = Collector(
        parts.controller, run_id, harness, grader, mode="eval", sampling=sampling or Sampling(), retries=retries
    )
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
