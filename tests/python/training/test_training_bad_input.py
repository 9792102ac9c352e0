"""Bad input through the whole loop: a named reason, finite numbers, an open gateway, and an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from training_fakes import Agents, FakeLab

from lightning_lab.algorithms import ESTIMATORS, register_estimator
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.records import Call, Outcome, Rollout, RolloutState, Step
from lightning_lab.training import ConfigError, TrainingLoop

MakeLoop = Callable[..., TrainingLoop]


def one_step(lab: FakeLab, loop: TrainingLoop) -> Step:
    final = loop.run()
    assert (final.state, final.reason) == ("finished", "")
    (step,) = lab.store.steps("run")
    assert all(np.isfinite(value) for value in step.metrics.values()) and lab.gateway.open.is_set()
    return step


def answering(reward: Callable[[int], float | None], lab: FakeLab) -> Callable[[Rollout], Mapping[str, Any]]:
    """Rollouts that call the model and get ``reward(number)``."""
    numbers = iter(range(10_000))

    def ending(rollout: Rollout) -> Mapping[str, Any]:
        lab.controller._call(rollout)
        return {"state": RolloutState.SUCCEEDED, "outcome": Outcome.COMPLETED, "reward": reward(next(numbers))}

    return ending


def test_a_rollout_without_calls_trains_nothing_and_is_counted(lab: FakeLab, make_loop: MakeLoop) -> None:
    silent: set[str] = set()

    def one_is_silent(rollout: Rollout) -> Mapping[str, Any] | None:
        if silent:
            return None
        silent.add(rollout.id)
        return {"state": RolloutState.SUCCEEDED, "outcome": Outcome.COMPLETED, "reward": 1.0}

    lab.controller.ending = one_is_silent
    step = one_step(lab, make_loop(steps=1, groups=4, n=4))
    assert step.metrics["no_tokens"] == 1 and step.skipped == ""
    weights = {r.id: r.weight for r in lab.store.rollouts("run")}
    assert weights.pop(silent.pop()) == 0.0 and list(weights.values()) == pytest.approx([1 / 15] * 15)


@pytest.mark.parametrize("logprobs", [[np.nan], [-np.inf], []])
def test_a_batch_with_every_token_masked_is_skipped(lab: FakeLab, make_loop: MakeLoop, logprobs: list[float]) -> None:
    lab.controller.alter = lambda call: replace(call, logprobs=np.array(logprobs, np.float32))
    step = one_step(lab, make_loop(steps=1))
    reason = "masked_no_logprob" if logprobs else "masked_unaligned"
    assert step.skipped == "no_tokens" and step.metrics[reason] == step.metrics["no_tokens"] == 8
    assert lab.policy.updates == [] and lab.gateway.log == []


def test_log_probs_missing_in_part_mask_those_tokens(lab: FakeLab, make_loop: MakeLoop) -> None:
    def longer(call: Call) -> Call:
        ids = np.array([1, 2, 3], np.int32)
        return replace(call, sampled_ids=ids, versions=ids * 0, logprobs=np.array([-1.0, np.nan, -2.0], np.float32))

    lab.controller.alter = longer
    lab.controller.ending = answering(lambda number: float(number % 2), lab)
    step = one_step(lab, make_loop(steps=1))
    assert step.metrics["masked_no_logprob"] == 8 and step.metrics["tokens"] == 16 and step.skipped == ""
    for rollout_id in step.rollout_ids:
        (sample,) = lab.store.samples(rollout_id)
        assert sample.mask.tolist() == [False, False, True, False, True] and np.isfinite(sample.logprobs).all()


def test_a_group_of_one_follows_its_rule(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.controller.ending = answering(lambda number: 1.0, lab)
    step = one_step(lab, make_loop(steps=1, groups=1, n=1))
    assert step.skipped == "no_signal" and lab.store.rollouts("run")[0].advantage == 0.0


def test_a_group_of_one_may_train_on_its_reward(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.controller.ending = answering(lambda number: 0.5, lab)
    step = one_step(lab, make_loop(steps=1, groups=1, n=1, singleton="reward"))
    assert step.skipped == "" and lab.store.rollouts("run")[0].advantage == 0.5


def test_one_valid_reward_is_left(lab: FakeLab, make_loop: MakeLoop) -> None:
    rewards = [1.0, float("nan"), None, float("-inf"), float("inf"), 0.25, None, float("nan")]
    lab.controller.ending = answering(lambda number: rewards[number], lab)
    step = one_step(lab, make_loop(steps=1, groups=1, n=8))
    assert step.metrics["no_reward"] == 6 and step.metrics["reward"] == 0.625 and step.skipped == ""
    assert [r.advantage is None for r in lab.store.rollouts("run")].count(True) == 6


def test_versions_from_the_future_are_counted(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.controller.alter = lambda call: replace(call, versions=np.array([7], np.int32))
    lab.controller.ending = answering(lambda number: float(number % 2), lab)
    step = one_step(lab, make_loop(steps=1))
    assert step.metrics["future_versions"] == 8 and step.metrics["staleness"] == 0.0


@pytest.mark.parametrize("settings", [{"n": 0}, {"groups": 0}, {"steps": 0}])
def test_an_empty_run_is_refused(make_loop: MakeLoop, settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        make_loop(**settings)


def test_an_estimator_of_ones_own_is_reached_by_name_and_its_faults_are_named(
    lab: FakeLab, make_loop: MakeLoop
) -> None:
    try:
        register_estimator("mine", lambda rewards, group, valid: rewards * 2.0)
        lab.controller.ending = answering(lambda number: float(number % 2), lab)
        one_step(lab, make_loop(steps=1, estimator="mine"))
        assert {r.advantage for r in lab.store.rollouts("run")} == {0.0, 2.0}
        register_estimator("mine", lambda rewards, group, valid: rewards * np.nan)
        final = make_loop(steps=1, estimator="mine").run()
        assert final.state == "failed" and "The estimator 'mine' gave" in final.reason
    finally:
        ESTIMATORS.pop("mine")


@pytest.fixture
def torch_lab(lab: FakeLab) -> Iterator[FakeLab]:
    """The real learner; the sampler beside it says the next id, in turn, whatever it is asked."""

    class Says(TorchPolicy):
        ids = iter(range(10, 10_000))

        def sample(self) -> tuple[int, float]:
            return next(self.ids), -1.0

    policy = Says("quickstart", train_threads=1)
    policy.start()
    controller = Agents(lab.store, policy, lab.gateway)  # type: ignore[arg-type]
    yield replace(lab, policy=policy, controller=controller)  # type: ignore[arg-type]
    controller.close()
    policy.close()


def loop_of(lab: FakeLab, make: MakeLoop) -> TrainingLoop:
    lab.controller.ending = answering(lambda number: float(number % 2), lab)
    loop = make(steps=1, learning_rate=1e-4)
    loop._parts = lab
    return loop


def test_the_real_learner_gives_every_token_its_numbers(torch_lab: FakeLab, make_loop: MakeLoop) -> None:
    step = one_step(torch_lab, loop_of(torch_lab, make_loop))
    assert step.skipped == "" and step.metrics["grad_norm"] > 0 and 0 < step.metrics["ess"] <= 1
    for rollout_id in step.rollout_ids:
        (stats,) = torch_lab.store.token_stats(rollout_id)
        assert set(stats) == {"entropy", "logprobs", "ratio", "clipped", "loss"}
        assert all(np.isfinite(numbers[2]) and np.isnan(numbers[:2]).all() for numbers in stats.values())
    (event,) = torch_lab.store.events(run_id="run", kind="weights")
    assert event.data["rollouts"] == pytest.approx({r.id: r.weight for r in torch_lab.store.rollouts("run")})


def test_ids_out_of_vocabulary_skip_the_step_by_name(torch_lab: FakeLab, make_loop: MakeLoop) -> None:
    torch_lab.controller.alter = lambda call: replace(call, sampled_ids=np.array([10**6], np.int32))
    step = one_step(torch_lab, loop_of(torch_lab, make_loop))
    assert step.skipped == "unknown_ids" and "grad_norm" not in step.metrics
    assert torch_lab.gateway.log == [] and torch_lab.policy.version == 0
    (event,) = torch_lab.store.events(run_id="run", kind="log")
    assert "another vocabulary" in event.data["message"] and "1000000" in event.data["message"]
