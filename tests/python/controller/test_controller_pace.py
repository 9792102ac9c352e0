"""``concurrency="auto"``: a model and a machine that can take so much, and no more."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from lightning_lab.controller import Controller, ControllerError
from lightning_lab.controller.pace import PERIOD_S, Pace, Seen


def seen(**changes):
    plain = {"runnable": 1.0, "in_flight": 0.0, "calls": 0, "held": False, "is_full": True, "waiting": 100}
    return Seen(**{**plain, **changes})


def driven(pace, *, serves_per_s, alone_s, periods):
    """Agents that call all the time, a policy that serves so many calls a second; the course of the concurrency."""
    course = []
    for _ in range(periods):
        rate = min(pace.concurrency / alone_s, serves_per_s)
        course.append(pace.adapt(seen(in_flight=pace.concurrency, calls=round(rate * PERIOD_S))))
    return course


@pytest.mark.parametrize(("serves_per_s", "alone_s"), [(20.0, 1.0), (50.0, 1.0), (40.0, 0.25)])
def test_it_settles_where_the_model_is_busy_and_its_queue_short(serves_per_s, alone_s):
    course = driven(Pace(cores=2), serves_per_s=serves_per_s, alone_s=alone_s, periods=300)
    enough = serves_per_s * alone_s
    assert min(course[-100:]) >= min(enough, 60)
    assert max(course[-100:]) <= 5 * enough


def test_a_pressed_machine_gets_fewer_agents_down_to_the_least():
    pace = Pace(cores=2, least=3)
    assert [pace.adapt(seen(runnable=20.0)) for _ in range(3)] == [3, 3, 3]
    assert Pace(cores=4).adapt(seen(runnable=20.0)) == 6


def test_nothing_grows_that_is_not_needed_and_nothing_beyond_the_most():
    pace = Pace(cores=1, most=4)
    assert pace.adapt(seen(waiting=0)) == pace.adapt(seen(is_full=False)) == 2
    assert [pace.adapt(seen()) for _ in range(4)] == [3, 4, 4, 4]


def test_calls_that_the_learner_holds_say_nothing():
    pace = Pace(cores=2)
    driven(pace, serves_per_s=100.0, alone_s=0.1, periods=3)
    before = pace.concurrency
    assert pace.adapt(seen(held=True, in_flight=50.0, calls=1, runnable=50.0)) == before


@dataclass
class Admission:
    in_flight: int = 0
    held: int = 0


def test_a_controller_adapts_while_rollouts_wait(make_bench, monkeypatch):
    monkeypatch.setattr("lightning_lab.controller.pace.PERIOD_S", 0.1)
    monkeypatch.setattr("lightning_lab.controller.pace._runnable_now", lambda: 0)
    bench = make_bench(concurrency="auto")
    bench.credentials.admission = Admission()
    begun_with = bench.controller.concurrency
    agent = bench.harness(lambda task: time.sleep(1000))
    rollouts = [bench.rollout(agent) for _ in range(begun_with + 2)]
    for rollout in rollouts:
        bench.controller.submit(rollout, agent, None)
    bench.wait_until(lambda: bench.has_started(rollouts[-1].id))
    assert bench.controller.concurrency >= begun_with + 2


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_concurrency_of_none_is_refused(bench, tmp_path, concurrency):
    with pytest.raises(ControllerError, match="at least 1"):
        Controller(bench.store, bench.credentials, tmp_path, concurrency=concurrency)
