"""Evaluation: the mean over valid rewards, with what was left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from training_fakes import FakeLab, agent, make_tasks, right_token

from lightning_lab.records import Outcome, Rollout, RolloutState
from lightning_lab.training import evaluate


def by_task(rollout: Rollout) -> Mapping[str, Any]:
    number = int(rollout.task.id[1:])
    if number == 3:
        return {"state": RolloutState.FAILED, "outcome": Outcome.GRADER_ERROR, "reward": 0.0}
    if number == 4:
        return {"state": RolloutState.FAILED, "outcome": Outcome.TIMEOUT, "reward": None}
    return {"state": RolloutState.SUCCEEDED, "outcome": Outcome.COMPLETED, "reward": float(number > 0)}


def test_infrastructure_is_excluded_and_counted(lab: FakeLab) -> None:
    lab.controller.ending = by_task
    result = evaluate(lab, "run", agent, make_tasks(5), right_token, n=2, temperature=0.5)
    assert (result.n, result.infrastructure, result.no_reward) == (6, 2, 2)
    assert result.mean == pytest.approx(2 / 3)
    assert result.stderr == pytest.approx(math.sqrt(6 * (2 / 9) / 5 / 6))
    assert result.outcomes == {"completed": 6, "grader_error": 2, "timeout": 2}
    assert {rollout.mode for rollout in lab.store.rollouts("run")} == {"eval"}
    assert {sampling.temperature for sampling in lab.controller.samplings if sampling} == {0.5}
    assert "Rollout(" not in repr(result)


def test_without_valid_rewards_there_is_no_mean(lab: FakeLab) -> None:
    lab.controller.ending = lambda r: {"state": RolloutState.FAILED, "outcome": Outcome.LOST}
    result = evaluate(lab, "run", agent, make_tasks(2), right_token)
    assert result.n == 0 and math.isnan(result.mean) and math.isnan(result.stderr)


def test_nothing_to_evaluate_is_an_error(lab: FakeLab) -> None:
    with pytest.raises(ValueError, match="0 tasks"):
        evaluate(lab, "run", agent, [], right_token)
