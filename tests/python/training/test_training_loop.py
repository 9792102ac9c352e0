"""The loop with the real store: whole runs, and every way in which a run may end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from training_fakes import FakeLab, make_tasks

from lightning_lab.policy.base import PolicyError, UpdateResult
from lightning_lab.records import Outcome, Rollout, RolloutState, Sampling
from lightning_lab.training import ConfigError, TrainingLoop, TrainingStopped
from lightning_lab.training.updates import combined

MakeLoop = Callable[..., TrainingLoop]
NAMED_METRICS = {
    "reward", "entropy", "approx_kl", "clip_frac", "ratio_mean", "grad_norm", "loss", "tokens", "rollouts", "no_signal",
    "infrastructure", "samples", "breaks", "seconds_collect", "seconds_update", "staleness",
}  # fmt: skip


def failing(error: str, outcome: Outcome = Outcome.AGENT_ERROR) -> Callable[[Rollout], Mapping[str, Any]]:
    return lambda rollout: {"state": RolloutState.FAILED, "outcome": outcome, "error": error, "reward": 0.0}


def test_a_whole_run_is_in_the_store(lab: FakeLab, make_loop: MakeLoop) -> None:
    final = make_loop(steps=3, seed=5).run()
    assert (final.state, final.reason) == ("finished", "") and lab.store.run("run") == final
    steps = lab.store.steps("run")
    assert [step.index for step in steps] == [0, 1, 2]
    for step in steps:
        assert all(np.isfinite(value) for value in step.metrics.values())
        assert step.metrics["rollouts"] == 8 and step.metrics["staleness"] == 0
        if not step.skipped:
            assert set(step.metrics) >= NAMED_METRICS
    updated = [step for step in steps if not step.skipped]
    assert [step.version for step in updated] == list(range(1, len(updated) + 1)) and updated
    assert lab.gateway.log == ["pause", "resume"] * len(updated)
    assert [event.data["version"] for event in lab.store.events(run_id="run", kind="policy")] == [
        s.version for s in updated
    ]


def test_every_rollout_shows_what_it_weighed(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(steps=2).run()
    for step in lab.store.steps("run"):
        rollouts = [lab.store.rollout(rollout_id) for rollout_id in step.rollout_ids]
        assert sum(rollout.weight or 0 for rollout in rollouts) == pytest.approx(1.0)
        assert all(rollout.step == step.index and rollout.advantage is not None for rollout in rollouts)
        by_group = {
            group: [r.advantage for r in rollouts if r.group_id == group] for group in {r.group_id for r in rollouts}
        }
        assert all(len(values) == 4 and sum(v or 0 for v in values) == pytest.approx(0) for values in by_group.values())
        for rollout in rollouts:
            (sample,) = lab.store.samples(rollout.id)
            assert sample.ids.tolist()[:2] == [1, 3] and sample.mask.tolist() == [False, False, True]
            if not step.skipped:
                (stats,) = lab.store.token_stats(rollout.id)
                assert set(stats) == {"entropy", "logprobs", "ratio", "clipped", "loss"}
                assert stats["ratio"][2] == pytest.approx(1.0, abs=1e-5)


def test_phases_are_events_in_their_order(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(steps=2, seed=1).run()
    events = lab.store.events(run_id="run", kind="phase")
    phases = [event.data["phase"] for event in events]
    skipped = [bool(step.skipped) for step in lab.store.steps("run")]
    one = ["collecting", "closing", "draining", "updating", "publishing"]
    assert phases == [phase for skip in skipped for phase in (one[:1] if skip else one)] + ["idle"]
    assert all(event.data["steps_total"] == 2 for event in events)


def test_it_learns_from_rewards_and_not_from_shuffled_ones(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(steps=25, groups=4, n=8).run()
    assert torch.softmax(lab.policy.logits, -1)[2].item() > 0.9
    assert lab.store.steps("run")[-1].metrics["reward"] > lab.store.steps("run")[0].metrics["reward"]


def test_shuffled_rewards_keep_the_graders_rewards(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(steps=1, groups=4, n=8, shuffle_rewards=True).run()
    rollouts = lab.store.rollouts("run")
    answers = {r.id: lab.store.calls(r.id)[0].reply.content for r in rollouts}
    assert all(r.reward == float(answers[r.id] == "2") for r in rollouts)
    assert any((r.advantage or 0) > 0 and r.reward == 0 for r in rollouts), (
        "the advantages are those of the permutation"
    )


def test_the_same_seed_takes_the_same_tasks_each_once_per_pass(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(steps=5, groups=2, tasks=10, seed=3).run()
    first = [rollout.task.id for rollout in lab.controller.submitted]
    assert sorted(set(first)) == sorted(task.id for task in make_tasks(10)) and len(first) == 40
    lab.controller.submitted.clear()
    make_loop(steps=5, groups=2, tasks=10, seed=3).run()
    assert [rollout.task.id for rollout in lab.controller.submitted] == first
    assert first[::4] != [task.id for task in make_tasks(10)]


def test_skyrl_537_the_gateway_is_resumed_after_update_raises(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.policy.update_error = RuntimeError("out of memory")
    loop = make_loop(steps=20)
    final = loop.run()
    assert (final.state, final.reason) == ("failed", "RuntimeError: out of memory")
    assert isinstance(loop.error, RuntimeError)
    assert lab.gateway.log == ["pause", "resume"] and lab.gateway.open.is_set()
    assert lab.store.run("run").state == "failed" and lab.policy.version == 0
    assert lab.store.events(run_id="run", kind="phase")[-1].data["phase"] == "idle"


def test_the_first_two_groups_failing_alike_stop_the_run(lab: FakeLab, make_loop: MakeLoop) -> None:
    count = iter(range(1000))
    lab.controller.ending = lambda rollout: failing(
        f"Traceback (most recent call last):\n  File \"agent.py\", line 7, in solver\nKeyError: 'tool_{next(count)}'"
    )(rollout)
    loop = make_loop(steps=20, groups=4)
    final = loop.run()
    assert final.state == "failed" and isinstance(loop.error, TrainingStopped)
    assert final.reason.startswith("The first two groups failed in the same way (agent_error): KeyError: 'tool_")
    assert 'File "agent.py", line 7, in solver' in final.reason
    assert lab.store.steps("run") == []


def test_groups_that_fail_differently_or_only_in_part_do_not(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.controller.ending = lambda r: failing(f"{r.task.id.replace('t', 'x' * int(r.task.id[1:]))} Error")(r)
    assert make_loop(steps=1).run().state == "finished"
    assert lab.store.steps("run")[0].skipped == "no_tokens"
    seen: list[str] = []

    def first_of_four(rollout: Rollout) -> Mapping[str, Any] | None:
        seen.append(rollout.id)
        return failing("Error: once")(rollout) if len(seen) % 4 == 1 else None

    lab.controller.ending = first_of_four
    assert make_loop(steps=2).run().state == "finished"


def test_agent_lightning_74_an_agent_that_never_calls_the_model(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.controller.ending = lambda r: {"state": RolloutState.SUCCEEDED, "outcome": Outcome.COMPLETED, "reward": 0.0}
    final = make_loop().run()
    assert final.state == "failed"
    assert "never called the model" in final.reason and "OPENAI_BASE_URL" in final.reason


def test_open_instruct_1887_infrastructure_failures_are_excluded_and_counted(lab: FakeLab, make_loop: MakeLoop) -> None:
    lost: set[str] = set()
    lock = threading.Lock()

    def one_per_group(rollout: Rollout) -> Mapping[str, Any] | None:
        with lock:
            if rollout.group_id in lost:
                return None
            lost.add(rollout.group_id)
        return {"state": RolloutState.FAILED, "outcome": Outcome.OOM, "reward": 1.0, "error": "killed"}

    lab.controller.ending = one_per_group
    make_loop(steps=1).run()
    (step,) = lab.store.steps("run")
    assert step.metrics["infrastructure"] == 2 and step.metrics["no_reward"] == 0
    rollouts = lab.store.rollouts("run")
    out = [rollout for rollout in rollouts if rollout.outcome is Outcome.OOM]
    assert [(r.advantage, r.weight) for r in out] == [(None, 0.0)] * 2
    kept = [rollout for rollout in rollouts if rollout.outcome is Outcome.COMPLETED]
    assert step.metrics["reward"] == pytest.approx(np.mean([r.reward for r in kept]))
    assert all(r.weight == pytest.approx(1 / 6) for r in kept)


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
def test_rewards_that_are_no_numbers_are_excluded_and_counted(
    lab: FakeLab, make_loop: MakeLoop, reward: float | None
) -> None:
    def without_reward(rollout: Rollout) -> Mapping[str, Any]:
        lab.controller._call(rollout)
        return {"state": RolloutState.SUCCEEDED, "outcome": Outcome.COMPLETED, "reward": reward}

    lab.controller.ending = without_reward
    assert make_loop(steps=2).run().state == "finished"
    for step in lab.store.steps("run"):
        assert step.skipped == "no_rewards" and step.metrics["no_reward"] == 8 and "reward" not in step.metrics
        assert all(np.isfinite(value) for value in step.metrics.values())
    assert lab.gateway.log == [] and lab.policy.version == 0


def test_easyr1_585_a_batch_without_signal_is_skipped_and_the_loop_goes_on(lab: FakeLab, make_loop: MakeLoop) -> None:
    with torch.no_grad():
        lab.policy.logits[2] = 100.0
    assert make_loop(steps=2).run().state == "finished"
    steps = lab.store.steps("run")
    assert [(s.skipped, s.version, s.metrics["no_signal"], s.metrics["reward"]) for s in steps] == [
        ("no_signal", 0, 2, 1)
    ] * 2
    assert lab.policy.updates == []
    assert [rollout.advantage for rollout in lab.store.rollouts("run")] == [0.0] * 16


def test_a_gradient_that_is_not_finite_skips_the_step(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.policy.extra_metrics = {"skipped": 1.0, "grad_norm": float("nan")}
    assert make_loop(steps=1, groups=4, n=8).run().state == "finished"
    (step,) = lab.store.steps("run")
    assert step.skipped == "non_finite_gradient"
    assert "grad_norm" not in step.metrics and "skipped" not in step.metrics and step.metrics["rollouts"] == 32


def test_the_learner_is_told_how_the_tokens_were_sampled(lab: FakeLab, make_loop: MakeLoop) -> None:
    sampling = Sampling(temperature=0.8, max_tokens=7)
    make_loop(steps=1, groups=4, n=8, sampling=sampling, loss_options={"clip_high": 0.3}, entropy_coef=0.01).run()
    assert set(lab.controller.samplings) == {sampling}
    expected = {"temperature": 0.8, "clip_high": 0.3, "entropy_coef": 0.01, "max_grad_norm": 1.0, "weight_decay": 0.0}
    by_default = {"old": "rollout", "corrections": {}, "kl_coef": 0.0, "kl_estimator": "k3"}
    assert lab.policy.options == expected | by_default


def test_rollouts_of_a_seeded_run_have_seeds_of_their_own(lab: FakeLab, make_loop: MakeLoop) -> None:
    """One seed for a whole group would be one reply, n times, and no signal."""
    make_loop(steps=2, groups=2, n=8, sampling=Sampling(seed=3)).run()
    seeds = [sampling.seed for sampling in lab.controller.samplings if sampling]
    assert len(set(seeds)) == len(seeds) >= 32
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)


def test_several_updates_are_one_step(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(steps=2, groups=4, n=8, updates=4).run()
    steps = lab.store.steps("run")
    assert [step.version for step in steps] == [1, 2] and len(lab.policy.updates) == 8
    assert lab.gateway.log == ["pause", "resume"] * 2
    ratios = [
        float(lab.store.token_stats(rollout_id)[0]["ratio"][2]) for step in steps for rollout_id in step.rollout_ids
    ]
    assert min(ratios) < 0.99 and max(ratios) > 1.01, "later updates are off-policy, which is what clips are for"
    for step, event in zip(steps, lab.store.events(run_id="run", kind="weights"), strict=True):
        assert event.data["rollouts"] == pytest.approx({r: lab.store.rollout(r).weight for r in step.rollout_ids})


def test_metrics_of_several_updates_are_joined_by_their_kind() -> None:
    def result(skipped: float, weights: Mapping[str, float], **metrics: float) -> UpdateResult:
        return UpdateResult(metrics={"skipped": skipped, **metrics}, rollout_weights=weights)

    parts = [
        result(1.0, {"a": 0.25, "b": 0.75}, entropy=1.0, tokens=10, masked_icepop=2, ratio_max=3.0, ratio_min=0.5),
        result(0.0, {"c": 1.0}, entropy=3.0, tokens=30, masked_icepop=0, ratio_max=2.0, ratio_min=0.9),
    ]
    both = combined(parts)
    assert both.metrics == {
        "skipped": 0.0, "entropy": 2.0, "tokens": 40, "masked_icepop": 2, "ratio_max": 3.0, "ratio_min": 0.5,
    }  # fmt: skip
    assert both.rollout_weights == {"a": 0.125, "b": 0.375, "c": 0.5}
    assert combined(parts[:1]) is parts[0]


def test_a_stop_request_finishes_the_step(lab: FakeLab, make_loop: MakeLoop) -> None:
    loop = make_loop(steps=50)
    lab.controller.ending = lambda rollout: loop.request_stop()  # type: ignore[func-returns-value]
    final = loop.run()
    assert (final.state, final.reason) == ("stopped", "Stopped on request after 1 of 50 steps.")
    assert [step.index for step in lab.store.steps("run")] == [0]
    assert all(rollout.state is RolloutState.SUCCEEDED for rollout in lab.store.rollouts("run"))


def test_cancel_ends_the_rollouts_at_once(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.controller.hold = threading.Event()
    loop = make_loop(steps=50)
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(loop.run()))
    thread.start()
    while len(lab.controller.submitted) < 8:
        thread.join(0.01)
    loop.cancel()
    thread.join(20)
    assert not thread.is_alive()
    assert (ended[0].state, ended[0].reason) == ("stopped", "Cancelled during step 0.")
    assert {rollout.state for rollout in lab.store.rollouts("run")} == {RolloutState.CANCELLED}
    assert lab.store.steps("run") == []


def test_cancel_before_the_start(lab: FakeLab, make_loop: MakeLoop) -> None:
    loop = make_loop()
    loop.cancel()
    assert loop.run().state == "stopped" and lab.controller.submitted == []


def test_a_controller_that_breaks_ends_the_run(lab: FakeLab, make_loop: MakeLoop) -> None:
    def explode(rollout: Rollout) -> Mapping[str, Any]:
        raise OSError("no process could be started")

    lab.controller.ending = explode
    final = make_loop().run()
    assert (final.state, final.reason) == ("failed", "OSError: no process could be started")


def test_held_out_evaluations_are_events(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(steps=3, eval_every=2, loop={"held_out": make_tasks(6)}).run()
    events = lab.store.events(run_id="run", kind="evaluation")
    assert [(event.data["step"], event.data["n"]) for event in events] == [(0, 6), (2, 6), (3, 6)]
    assert len(lab.store.rollouts("run", mode="eval")) == 18
    assert all(rollout.step is None for rollout in lab.store.rollouts("run", mode="eval"))


def test_a_long_sample_is_cut_masked_and_counted(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(steps=1, max_sample_tokens=2).run()
    (step,) = lab.store.steps("run")
    assert step.skipped == "no_tokens" and step.metrics["masked_over_budget"] == 8


def test_what_could_never_run_is_refused_at_once(lab: FakeLab, make_loop: MakeLoop) -> None:
    with pytest.raises(ConfigError, match="no tasks"):
        make_loop(tasks=0)
    with pytest.raises(ConfigError, match="held-out"):
        make_loop(eval_every=1)
    with pytest.raises(ConfigError, match="no loss 'ppo'"):
        make_loop(loss="ppo")
    with pytest.raises(ConfigError, match=r"updates is 2; it must be 1 with old_logprobs='recomputed'"):
        make_loop(updates=2, old_logprobs="recomputed")
    with pytest.raises(ConfigError, match=r"cliprange.*clip_high, clip_low"):
        make_loop(loss_options={"cliprange": 0.2})
    lab.policy.can_learn = False
    with pytest.raises(PolicyError, match="only answers"):
        make_loop()


def mostly(lost: Outcome) -> Callable[[Rollout], Mapping[str, Any] | None]:
    """Three of four rollouts end so."""
    numbers = count()

    def end(rollout: Rollout) -> Mapping[str, Any] | None:
        ends = next(numbers) % 4 < 3
        return {"state": RolloutState.FAILED, "outcome": lost, "error": "the disk is full"} if ends else None

    return end


def test_a_run_stops_by_itself_when_the_infrastructure_fails_too_often(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.controller.ending = mostly(Outcome.LOST)
    final = make_loop(steps=20, groups=1, infrastructure_window=16).run()
    assert final.state == "failed"
    assert "12 of the last 16 rollouts failed for reasons that say nothing about the agent (lost 12)" in final.reason
    assert "infrastructure_limit=0.5" in final.reason and "the disk is full" in final.reason
    assert [len(lab.store.rollouts("run")), len(lab.store.steps("run"))] == [16, 3]


@pytest.mark.parametrize(
    ("outcome", "settings"),
    [(Outcome.LOST, {"infrastructure_limit": 0.75}), (Outcome.AGENT_ERROR, {}), (Outcome.CANCELLED, {})],
)
def test_it_goes_on_below_the_limit_and_for_what_is_no_fault_of_the_infrastructure(
    lab: FakeLab, make_loop: MakeLoop, outcome: Outcome, settings: dict[str, float]
) -> None:
    lab.controller.ending = mostly(outcome)
    assert make_loop(steps=4, groups=1, infrastructure_window=8, **settings).run().state == "finished"


def test_the_controller_is_told_what_to_try_again(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(steps=1, retries={"lost": 3}, retry_wait_s=0.5, eval_every=1, loop={"held_out": make_tasks(1)}).run()
    assert {(tuple(rule.times.items()), rule.wait_s) for rule in lab.controller.retries} == {((("lost", 3),), 0.5)}
