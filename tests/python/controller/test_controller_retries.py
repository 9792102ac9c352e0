"""Attempts that the infrastructure failed are made again, by rule; nothing of one is in the other."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_lab.controller import supervisor
from lightning_lab.controller.frames import receive
from lightning_lab.controller.retries import MAY_RETRY, NEVER, USUAL, Retries
from lightning_lab.records import Outcome, RolloutState, Task


def test_the_rule():
    rule = Retries(times={"lost": 2, "oom": 1}, wait_s=2.0)
    assert [rule.delay_s(Outcome.LOST, tries) for tries in (1, 2, 3)] == [2.0, 4.0, None]
    assert [rule.delay_s(Outcome.OOM, tries) for tries in (1, 2)] == [2.0, None]
    assert rule.delay_s(Outcome.AGENT_ERROR, 1) is None and NEVER.delay_s(Outcome.LOST, 1) is None
    assert Retries(times={"lost": 99}).delay_s(Outcome.LOST, 50) == 60.0
    assert set(USUAL) <= MAY_RETRY and "cancelled" not in MAY_RETRY and "agent_error" not in MAY_RETRY


def test_an_agent_that_ends_its_supervisor_at_once_has_begun(monkeypatch):
    """Else an attempt whose supervisor had waited for work would be made twice, and counted once."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    heard: list[Any] = []
    monkeypatch.setattr(supervisor, "Usage", lambda *_: None)
    monkeypatch.setattr(supervisor._Supervision, "_fork", lambda self, payload: heard.append(receive(ours)))
    group: Any = SimpleNamespace(limit_processes=lambda _: None, limit_memory=lambda _: None, memory_kills=lambda: 0)
    spec = {"limits": {"processes": None, "memory": None}, "folders": []}
    with ours, theirs:
        supervisor._Supervision(theirs, 0, 0, group, spec, b"")
    assert [json.loads(one) for one in heard] == [{"event": "launched"}]


def kills_its_supervisor(task):
    """As often as the task says; then answers."""
    import os
    import signal

    counted = Path(task.fields["counter"])
    lives = int(counted.read_text())
    Path("left").write_text("by an earlier attempt" if Path("left").exists() else "fresh")
    if lives:
        counted.write_text(str(lives - 1))
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    return "42"


def attempts(bench, *rollout_ids):
    """What the log says of attempts that were made again."""
    bench.store.flush()
    return [event.data for event in bench.store.events(kind="attempt") if event.subject in rollout_ids]


@pytest.mark.parametrize(("lives", "outcome"), [(1, Outcome.COMPLETED), (2, Outcome.LOST)])
def test_a_lost_attempt_is_made_again_as_often_as_the_rule_says(bench, tmp_path, lives, outcome):
    counter = tmp_path / "lives"
    counter.write_text(str(lives))
    agent = bench.harness(kills_its_supervisor)
    grade = bench.grader(lambda task, result: (Path(result.workdir) / "left").read_text() == "fresh")
    rollout = bench.rollout(agent, task=Task(id="t", prompt="?", answer="42", fields={"counter": str(counter)}))
    rule = Retries(times={"lost": 1}, wait_s=0.01)
    ended = bench.controller.submit(rollout, agent, grade, retries=rule).result(60)
    assert (ended.attempt, ended.outcome) == (2, outcome)
    assert ended.reward == (1.0 if outcome is Outcome.COMPLETED else None)
    assert bench.store.rollout(rollout.id) == ended
    (told,) = attempts(bench, rollout.id)
    assert (told["attempt"], told["outcome"], told["delay_s"]) == (1, "lost", 0.01) and "supervisor" in told["error"]


def test_without_a_rule_and_for_an_agents_own_errors_there_is_one_attempt(bench, tmp_path):
    counter = tmp_path / "lives"
    counter.write_text("1")
    agent = bench.harness(kills_its_supervisor)
    task = Task(id="t", prompt="?", fields={"counter": str(counter)})
    once = bench.run(agent, task=task)
    assert (once.outcome, once.attempt) == (Outcome.LOST, 1)

    def broken(task):
        raise ValueError("no")

    broken = bench.harness(broken)
    rollout = bench.rollout(broken)
    rule = Retries(times=dict.fromkeys(MAY_RETRY, 5), wait_s=0.01)
    ended = bench.controller.submit(rollout, broken, bench.equal, retries=rule).result(60)
    assert (ended.outcome, ended.attempt) == (Outcome.AGENT_ERROR, 1)
    assert attempts(bench, once.id, rollout.id) == []


def test_a_rollout_that_waits_for_its_next_attempt_can_be_cancelled(make_bench, tmp_path):
    bench, counter = make_bench(), tmp_path / "lives"
    counter.write_text("9")
    agent = bench.harness(kills_its_supervisor)
    task = Task(id="t", prompt="?", fields={"counter": str(counter)})
    rule = Retries(times={"lost": 1}, wait_s=60.0)
    waiting = [bench.rollout(agent, task=task) for _ in range(2)]
    futures = [bench.controller.submit(rollout, agent, bench.equal, retries=rule) for rollout in waiting]
    bench.wait_until(lambda: len(attempts(bench, waiting[0].id, waiting[1].id)) == 2)
    assert bench.store.rollout(waiting[0].id).state is RolloutState.QUEUING
    assert bench.store.rollout(waiting[0].id).attempt == 2
    bench.controller.cancel(waiting[0].id)
    assert futures[0].result(10).outcome is Outcome.CANCELLED
    bench.controller.close()
    assert futures[1].result(10).outcome is Outcome.CANCELLED
