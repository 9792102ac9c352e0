"""The collocated schedule in whole runs: groups go on across updates, and nothing is lost or taken twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from training_fakes import FakeLab

from lightning_lab.policy.base import UpdateResult
from lightning_lab.records import Outcome, Rollout, RolloutState
from lightning_lab.training import TrainingLoop

MakeLoop = Callable[..., TrainingLoop]


def slow(seconds: dict[str, float]) -> Callable[[Rollout], None]:
    """Rollouts of these groups take their time."""
    return lambda rollout: time.sleep(seconds.get(rollout.group_id, 0.0))


def group(number: int) -> str:
    return f"g-run-{number:06d}"


def consumed(lab: FakeLab) -> list[list[str]]:
    """Groups of each step."""
    return [
        list(dict.fromkeys(lab.store.rollout(rollout_id).group_id for rollout_id in step.rollout_ids))
        for step in lab.store.steps("run")
    ]


def test_every_group_is_consumed_once_and_whole(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.controller.ending = slow({group(n): 0.02 * (n % 3) for n in range(40)})
    final = make_loop(schedule="collocated", steps=8, seed=1).run()
    assert final.state == "finished"
    groups = [name for step in consumed(lab) for name in step]
    assert sorted(groups) == [group(n) for n in range(16)] and len(set(groups)) == 16
    assert Counter(rollout.group_id for rollout in lab.controller.submitted) == dict.fromkeys(groups, 4)
    assert all(rollout.step is not None and rollout.finished_at is not None for rollout in lab.store.rollouts("run"))
    assert lab.store.steps("run")[-1].metrics["carried_over"] == 0


def test_a_slow_group_is_carried_over_and_its_tokens_are_stale(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.controller.hold = None
    release = threading.Event()

    def ending(rollout: Rollout) -> None:
        if rollout.group_id == group(0) and rollout.id == lab.controller.submitted[0].id:
            release.wait(20)  # three of its four tokens are sampled at version 0

    lab.controller.ending = ending
    loop = make_loop(schedule="collocated", steps=4, seed=1)
    running = threading.Thread(target=loop.run)
    running.start()
    while len(lab.store.steps("run")) < 2:
        time.sleep(0.005)
    release.set()
    running.join(20)
    steps = consumed(lab)
    assert group(0) not in steps[0] + steps[1] and group(0) in steps[2] + steps[3]
    stale = next(step for step in lab.store.steps("run") if step.index == (2 if group(0) in steps[2] else 3))
    assert stale.metrics["staleness_max"] >= 1 or stale.version == 0
    assert lab.store.steps("run")[0].metrics["carried_over"] >= 1


def test_a_group_that_would_become_too_old_is_waited_for(lab: FakeLab, make_loop: MakeLoop) -> None:
    def ending(rollout: Rollout) -> None:
        deadline = time.monotonic() + 20
        while rollout.id == lab.controller.submitted[0].id and not waits(lab) and time.monotonic() < deadline:
            time.sleep(0.005)

    lab.controller.ending = ending
    make_loop(schedule="collocated", steps=5, seed=1, max_staleness=1).run()
    assert group(0) in waits(lab)[0]["groups"]
    assert all(step.metrics["staleness_max"] <= 1 for step in lab.store.steps("run"))
    groups = sorted(name for step in consumed(lab) for name in step)
    assert groups == [group(n) for n in range(len(groups))] and len(consumed(lab)) == 5


def waits(lab: FakeLab) -> list[Mapping[str, Any]]:
    phases = [event.data for event in lab.store.events(run_id="run", kind="phase")]
    return [data for data in phases if data["phase"] == "staleness_wait"]


def test_sync_carries_nothing_over(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(schedule="sync", steps=3).run()
    assert all(
        step.metrics["carried_over"] == 0 and step.metrics["staleness_max"] == 0 for step in lab.store.steps("run")
    )


def test_the_gateway_is_told_how_to_pause(lab: FakeLab, make_loop: MakeLoop) -> None:
    make_loop(schedule="collocated", pause="interrupt", steps=3).run()
    assert set(lab.gateway.modes) == {"interrupt"}


def test_rollouts_that_end_beside_an_update_make_room_for_others(
    lab: FakeLab, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, updating = lab.policy.update, threading.Event()
    begun: list[tuple[int, int]] = []

    def ending(rollout: Rollout) -> Mapping[str, Any] | None:
        if rollout.group_id < group(2):
            return None
        updating.wait(20)  # these never call the model, so that they can end while calls are held
        return {"state": RolloutState.FAILED, "outcome": Outcome.AGENT_ERROR, "reward": 0.0}

    def update(*arguments: Any, **options: Any) -> UpdateResult:
        before, deadline = len(lab.controller.submitted), time.monotonic() + 20
        updating.set()
        while not begun and len(lab.controller.submitted) == before and time.monotonic() < deadline:
            time.sleep(0.002)
        begun.append((before, len(lab.controller.submitted)))
        return learn(*arguments, **options)

    lab.controller.ending = ending
    monkeypatch.setattr(lab.policy, "update", update)
    final = make_loop(schedule="collocated", steps=4, singleton="reward").run()
    assert final.state == "finished" and begun[0][1] > begun[0][0]
    assert sorted(name for step in consumed(lab) for name in step) == [group(n) for n in range(8)]


def test_what_goes_wrong_beside_an_update_ends_the_run_after_the_step(
    lab: FakeLab, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = lab.policy.update

    def update(*arguments: Any, **options: Any) -> UpdateResult:
        loop.cancel()
        return learn(*arguments, **options)

    monkeypatch.setattr(lab.policy, "update", update)
    loop = make_loop(schedule="collocated", steps=4, seed=1)
    assert loop.run().state == "stopped"
    assert [step.version for step in lab.store.steps("run")] == [1]
    assert [event.data["version"] for event in lab.store.events(run_id="run", kind="policy")] == [1]


def test_stopping_cancels_what_is_under_way(lab: FakeLab, make_loop: MakeLoop) -> None:
    lab.controller.ending = slow({group(n): 0.02 for n in range(2, 400)})
    loop = make_loop(schedule="collocated", steps=100)
    running = threading.Thread(target=loop.run)
    running.start()
    while not lab.store.steps("run"):
        time.sleep(0.005)
    loop.request_stop()
    running.join(20)
    assert lab.store.run("run").state == "stopped"
    used = {rollout_id for step in lab.store.steps("run") for rollout_id in step.rollout_ids}
    left = {rollout.id for rollout in lab.controller.submitted} - used
    assert left and lab.controller.cancelled <= left
