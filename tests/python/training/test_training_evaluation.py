"""Evaluation: the mean over valid rewards, with what was left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from training_fakes import FakeLab, agent, make_tasks, right_token

from lightning_lab.records import Outcome, Rollout, RolloutState, Sampling
from lightning_lab.training import EvalResult, evaluate


def by_task(rollout: Rollout) -> Mapping[str, Any]:
    number = int(rollout.task.id[1:])
    if number == 3:
        return {"state": RolloutState.FAILED, "outcome": Outcome.GRADER_ERROR, "reward": 0.0}
    if number == 4:
        return {"state": RolloutState.FAILED, "outcome": Outcome.TIMEOUT, "reward": None}
    return {"state": RolloutState.SUCCEEDED, "outcome": Outcome.COMPLETED, "reward": float(number > 0)}


def test_infrastructure_is_excluded_and_counted(lab: FakeLab) -> None:
    lab.controller.ending = by_task
    result = evaluate(lab, "run", agent, make_tasks(5), right_token, n=2, sampling=Sampling(temperature=0.5))
    assert (result.n, result.infrastructure, result.no_reward) == (6, 2, 2)
    assert result.mean == pytest.approx(2 / 3)
    assert result.stderr == pytest.approx(math.sqrt(6 * (2 / 9) / 5 / 6))
    assert result.outcomes == {"completed": 6, "grader_error": 2, "timeout": 2}
    assert {rollout.mode for rollout in lab.store.rollouts("run")} == {"eval"}
    assert {sampling.temperature for sampling in lab.controller.samplings if sampling} == {0.5}
    assert "Rollout(" not in repr(result)


def test_every_rollout_of_every_task_counts_however_few_run_at_a_time(lab: FakeLab) -> None:
    lab.controller.ending = lambda r: {
        "state": RolloutState.SUCCEEDED, "outcome": Outcome.COMPLETED, "reward": float(r.task.id[1:])
    }  # fmt: skip
    result = evaluate(lab, "run", agent, make_tasks(37), right_token, n=3, sampling=Sampling(temperature=0.0))
    assert (result.n, result.mean) == (111, 18.0) and len(result.rollouts) == 111
    assert {sampling.temperature for sampling in lab.controller.samplings if sampling} == {0.0}
    assert (result.harness.name, result.harness.version) == ("agent", agent.version) and agent.version
    assert result.version == lab.policy.version == 0


def test_without_valid_rewards_there_is_no_mean(lab: FakeLab) -> None:
    lab.controller.ending = lambda r: {"state": RolloutState.FAILED, "outcome": Outcome.LOST}
    result = evaluate(lab, "run", agent, make_tasks(2), right_token)
    assert result.n == 0 and math.isnan(result.mean) and math.isnan(result.stderr)


def test_nothing_to_evaluate_is_an_error(lab: FakeLab) -> None:
    with pytest.raises(ValueError, match="0 tasks"):
        evaluate(lab, "run", agent, [], right_token)


def some_succeed(lab: FakeLab) -> Callable[[Rollout], Mapping[str, Any]]:
    """Of four rollouts, task 0 has one success, task 1 two, task 2 none; task 3 loses two, and the others succeed."""

    def ending(rollout: Rollout) -> Mapping[str, Any]:
        number = int(rollout.task.id[1:])
        rank = [other.id for other in lab.controller.submitted if other.task == rollout.task].index(rollout.id)
        if number == 3 and rank >= 2:
            return {"state": RolloutState.FAILED, "outcome": Outcome.LOST, "reward": None}
        wins = {0: 1, 1: 2, 2: 0, 3: 2}[number]
        return {"state": RolloutState.SUCCEEDED, "outcome": Outcome.COMPLETED, "reward": float(rank < wins)}

    return ending


def test_pass_at_k_is_the_unbiased_estimate_over_tasks(lab: FakeLab) -> None:
    lab.controller.ending = some_succeed(lab)
    result = evaluate(lab, "run", agent, make_tasks(4), right_token, n=4)
    assert (result.n, result.infrastructure) == (14, 2)
    assert result.pass_at(1) == pytest.approx((1 / 4 + 2 / 4 + 0 + 1) / 4)
    assert result.pass_at(2) == pytest.approx((1 - 3 / 6 + 1 - 1 / 6 + 0 + 1) / 4)
    assert result.pass_at(4) == pytest.approx((1 + 1 + 0) / 3), "task 3 has two valid rollouts only"
    assert result.pass_at(1, success=0.0) == 1.0
    for k in (0, 5):
        with pytest.raises(ValueError, match=f"No task has {k} rollouts"):
            result.pass_at(k)


def test_pass_at_k_equals_drawing_k_rollouts_in_every_way() -> None:
    rewards = [1, 0, 0, 1, 0]
    result = scored(rewards)
    for k in range(1, 6):
        draws = list(itertools.combinations(rewards, k))
        assert result.pass_at(k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws))


def test_the_interval_covers_the_mean_and_grows_with_the_spread_between_tasks() -> None:
    one_each, alike = scored([1, 0] * 20, per_task=1), scored([1] * 20 + [0] * 20, per_task=10)
    widths = []
    for result in (one_each, alike):
        low, high = result.interval()
        assert low < result.mean < high and result.interval() == (low, high)
        widths.append(high - low)
    assert widths[1] > 1.5 * widths[0], "four tasks say less than forty"
    assert all(math.isnan(value) for value in scored([]).interval())


def test_by_field(lab: FakeLab) -> None:
    tasks = [replace(task, fields={"kind": "odd" if i % 2 else "even"}) for i, task in enumerate(make_tasks(4))]
    lab.controller.ending = lambda rollout: {
        "state": RolloutState.SUCCEEDED,
        "outcome": Outcome.COMPLETED,
        "reward": float(rollout.task.fields["kind"] == "odd"),
    }
    result = evaluate(lab, "run", agent, tasks, right_token, n=2)
    parts = result.by("kind")
    assert {kind: (part.n, part.mean) for kind, part in parts.items()} == {"even": (4, 0.0), "odd": (4, 1.0)}
    assert parts["odd"].harness == agent.info


def scored(rewards: list[int], per_task: int | None = None) -> EvalResult:
    """A result with these rewards, ``per_task`` of them for each task (default: one task)."""
    size = per_task or max(len(rewards), 1)
    tasks = make_tasks(-(-len(rewards) // size))
    rollouts = tuple(
        Rollout(
            id=f"r{i}", run_id="run", group_id=f"e{i // size}", task=tasks[i // size], harness=agent.info, mode="eval",
            state=RolloutState.SUCCEEDED, outcome=Outcome.COMPLETED, reward=float(reward),
        )
        for i, reward in enumerate(rewards)
    )  # fmt: skip
    mean = sum(rewards) / len(rewards) if rewards else math.nan
    return EvalResult(
        mean=mean, n=len(rewards), stderr=0.0, infrastructure=0, no_reward=0, outcomes={}, version=0,
        harness=agent.info, rollouts=rollouts,
    )  # fmt: skip
