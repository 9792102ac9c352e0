"""A run followed through a real store: the panel's rows, counters and steps equal what is stored."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_lab.gateway import AdmissionState
from lightning_lab.notebook.cuts import cuts_of
from lightning_lab.notebook.detail import rollout_detail
from lightning_lab.notebook.drivers import Drivers
from lightning_lab.notebook.feed import RunFeed
from lightning_lab.records import (
    Break,
    BreakCause,
    Call,
    HarnessInfo,
    Message,
    Outcome,
    Rollout,
    RolloutState,
    Run,
    Sample,
    Sampling,
    Segment,
    Step,
    Task,
)
from lightning_lab.store import Store
from lightning_lab.store.errors import UnknownIdError

HARNESS = HarnessInfo(name="solver", version="1", kind="function")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite") as opened:
        for run_id in ("run", "other"):
            opened.put_run(Run(id=run_id, kind="fit", state="running", settings={"steps": 5}, created_at=1.0))
        yield opened


def rollout(i: int, run_id: str = "run", **fields: Any) -> Rollout:
    return Rollout(
        **{
            "id": f"r-{run_id}-{i}", "run_id": run_id, "group_id": f"g-{i // 4}",
            "task": Task(id=str(i), prompt=f"task {i}"), "harness": HARNESS,
            "mode": "train", "state": RolloutState.QUEUING, "created_at": 10.0 + i, **fields,
        }
    )  # fmt: skip


def call(rollout_id: str, ordinal: int, messages: tuple[Message, ...], reply: Message, **fields: Any) -> Call:
    ids = np.arange(3, dtype=np.int32)
    return Call(
        **{
            "id": f"c-{rollout_id}-{ordinal}", "rollout_id": rollout_id, "attempt": 1, "ordinal": ordinal,
            "request_id": f"q-{ordinal}", "protocol": "chat", "model": "m", "messages": messages,
            "tools": ({"type": "function", "function": {"name": "calc"}},), "reply": reply,
            "prompt_ids": np.arange(5 + ordinal, dtype=np.int32), "sampled_ids": ids,
            "logprobs": np.zeros(3, np.float32), "versions": np.array([2, 2, 3], np.int32), "finish_reason": "stop",
            "asked": {}, "used": Sampling(), "arrived_at": 1.0, "held_s": 0.5, "started_at": 2.0, "finished_at": 3.5,
            "delivered": True, **fields,
        }
    )  # fmt: skip


def end(item: Rollout, **fields: Any) -> Rollout:
    ended = {"state": RolloutState.SUCCEEDED, "outcome": Outcome.COMPLETED, "reward": 1.0, "finished_at": 30.0}
    return dataclasses.replace(item, **{**ended, **fields})


def test_rows_counters_and_steps_equal_the_store_after_any_history(store: Store) -> None:
    feed = RunFeed(store, "run")
    chance = random.Random(0)
    live: list[Rollout] = []
    version = 0
    for i in range(300):
        if i % 40 == 0:
            store.put_event("phase", "run", data={"phase": "collecting", "step": i // 40, "version": version})
            version += 1
        live.append(rollout(i))
        store.put_rollout(live[-1])
        store.put_rollout(rollout(i, "other"))
        if chance.random() < 0.6:
            item = live.pop(chance.randrange(len(live)))
            store.put_call(call(item.id, 0, (Message(role="user", content="q"),), Message(role="assistant")))
            failed = chance.random() < 0.2
            bad: dict[str, Any] = {"state": RolloutState.FAILED, "outcome": Outcome.OOM, "reward": None}
            store.put_rollout(end(item, **(bad if failed else {})))
        if i % 25 == 0:
            store.flush()
            feed.refresh()
    step = Step(
        run_id="run", index=0, version=1, rollout_ids=("r-run-0",), metrics={"reward": 0.5, "entropy": float("nan")},
        started_at=1.0, finished_at=3.0,
    )  # fmt: skip
    store.put_step(step)
    store.put_event("evaluation", "run", data={"step": 1, "value": 0.75, "n": 8})
    store.flush()
    feed.refresh()
    snapshot = feed.snapshot(lab="lab", lab_state="open", admission=AdmissionState(paused=False, in_flight=2, held=1))

    assert snapshot.counters == {**store.counts("run"), "in_flight": 2, "held": 1}
    totals = store.call_totals([row.id for row in feed.table.rows])
    for row, stored in zip(feed.table.rows, store.rollouts("run"), strict=True):
        assert (row.id, row.state, row.outcome) == (stored.id, stored.state, stored.outcome or "")
        assert (row.reward, row.calls, row.tokens) == (stored.reward, *totals[stored.id])
    assert [row.row for row in feed.table.rows] == list(range(300))
    assert feed.table.rows[0].version == 0 and feed.table.rows[299].version == 7
    assert snapshot.steps[0]["reward"] == 0.5 and snapshot.steps[0]["entropy"] is None
    assert snapshot.reward == {"now": 0.5, "best": 0.5, "held_out": [{"step": 1, "value": 0.75, "n": 8}]}
    assert snapshot.phase["step"] == 7 and snapshot.run and snapshot.run["steps_total"] == 5


def test_each_event_is_looked_up_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that only count, such as calls: a frame costs what is new, however long the log is."""
    feed, asked, read = RunFeed(store, "run"), [], store.events
    monkeypatch.setattr(store, "events", lambda *, after, **named: asked.append(after) or read(after=after, **named))
    monkeypatch.setattr("lightning_lab.notebook.feed._PAGE", 2)
    question, answer = (Message(role="user", content="q"),), Message(role="assistant")
    for at in range(3):
        store.put_rollout(rollout(at))
    store.put_call(call("r-run-0", 0, question, answer))
    store.flush()
    feed.refresh()
    looked_at = store.last_event()
    store.put_call(call("r-run-0", 1, question, answer))
    store.put_call(call("r-run-1", 0, question, answer))
    store.flush()
    asked.clear()
    feed.refresh()
    feed.refresh()
    store.put_event("log", "other")
    store.flush()
    feed.refresh()
    assert asked == [looked_at, looked_at + 2]
    assert [(row.calls, row.tokens) for row in feed.table.rows] == [(2, 6), (1, 3), (0, 0)]


def test_a_consumed_rollout_changes_its_row(store: Store) -> None:
    feed = RunFeed(store, "run")
    done = end(rollout(0))
    store.put_rollout(done)
    store.flush()
    feed.refresh()
    feed.table.take_changed(1_000_000)
    store.put_rollout(dataclasses.replace(done, step=3, advantage=-0.5, weight=0.25))
    store.flush()
    feed.refresh()
    (row,) = feed.table.take_changed(1_000_000)
    assert (row.step, row.advantage, row.weight) == (3, -0.5, 0.25)


def test_a_row_tells_samples_breaks_and_staleness_once_its_step_is_stored(store: Store) -> None:
    feed = RunFeed(store, "run")
    store.put_rollout(end(rollout(0), step=0))
    ids = np.arange(4, dtype=np.int32)
    sample = Sample(
        rollout_id="r-run-0", ids=ids, mask=np.array([False, True, True, False]), logprobs=np.zeros(4, np.float32),
        versions=np.array([0, 2, 3, 1], np.int32), segments=(Segment(call_id="c", start=1, stop=3),), masked={},
    )  # fmt: skip
    cut = Break(
        rollout_id="r-run-0", call_id="c", previous_call_id="b", index=1, cause=BreakCause.TEMPLATE, before="", after=""
    )
    store.put_samples("run", 0, [sample, sample], [cut])
    store.flush()
    feed.refresh()
    assert (feed.table.rows[0].samples, feed.table.rows[0].breaks, feed.table.rows[0].staleness) == (None, None, None)
    store.put_step(
        Step(run_id="run", index=0, version=6, rollout_ids=("r-run-0",), metrics={}, started_at=1.0, finished_at=2.0)
    )
    store.flush()
    feed.refresh()
    # The step updated version 5; its oldest token that trains is of version 2.
    assert (feed.table.rows[0].samples, feed.table.rows[0].breaks, feed.table.rows[0].staleness) == (2, 1, 3)
    store.put_rollout(end(rollout(0), step=0, advantage=0.5))
    store.flush()
    feed.refresh()
    assert (feed.table.rows[0].samples, feed.table.rows[0].advantage) == (2, 0.5)


def test_the_rollouts_that_drove_a_step_are_ranked_by_their_share_of_its_kl(store: Store) -> None:
    ids = ("r-run-0", "r-run-1", "r-run-2")
    for i, ratio in enumerate((1.0, 2.0, 0.5)):
        store.put_rollout(rollout(i))
        numbers = np.array([np.nan, ratio, ratio], np.float32)
        store.put_token_stats("run", 0, ids[i], 0, {"ratio": numbers, "entropy": numbers})
    store.flush()
    step = Step(run_id="run", index=0, version=1, rollout_ids=ids, metrics={}, started_at=1.0, finished_at=2.0)
    parts = {"r-run-1": 1 - math.log(2), "r-run-2": math.log(2) - 0.5}
    shares = Drivers(store).of(step, "kl")
    assert [name for name, _ in shares] == ["r-run-1", "r-run-2"]
    assert dict(shares) == pytest.approx({name: part / sum(parts.values()) for name, part in parts.items()})
    assert Drivers(store).of(step, "clip") == [], "nobody kept what was clipped"


def test_the_oldest_rollout_tells_what_it_waits_for(store: Store) -> None:
    feed = RunFeed(store, "run")
    for i, started in enumerate((30.0, 20.0)):
        store.put_rollout(rollout(i, state=RolloutState.RUNNING, started_at=started))

    def oldest(**more: Any) -> Any:
        store.flush()
        feed.refresh()
        admission = AdmissionState(paused=False, in_flight=0, held=0, **more)
        return feed.snapshot(lab="lab", lab_state="open", admission=admission).oldest

    asked = frozenset({"r-run-1"})
    first = {"rollout": "r-run-1", "started_at": 20.0, "since": 20.0}
    assert oldest(generating=asked) == {**first, "waits_for": "model"}
    assert oldest(waiting=asked) == {**first, "waits_for": "resume"}
    store.put_call(call("r-run-1", 0, (Message(role="user", content="q"),), Message(role="assistant")))
    assert oldest() == {**first, "waits_for": "agent", "since": 3.5}
    store.put_rollout(end(rollout(1, started_at=20.0)))
    assert oldest()["rollout"] == "r-run-0"
    store.put_rollout(end(rollout(0, started_at=30.0)))
    assert oldest() is None


def test_detail_shows_only_what_is_new_in_each_call(store: Store) -> None:
    store.put_rollout(rollout(0, state=RolloutState.RUNNING))
    user = Message(role="user", content="1 + 1?")
    asks = Message(role="assistant", tool_calls=({"id": "t1", "name": "calc", "arguments": '{"expr": "1+1"}'},))
    tool = Message(role="tool", content="2", tool_call_id="t1")
    edited = dataclasses.replace(asks, content="I will calculate.")
    rid = "r-run-0"
    store.put_call(call(rid, 0, (user,), asks))
    store.put_call(call(rid, 1, (user, asks, tool), Message(role="assistant", content="2"), parent_id=f"c-{rid}-0"))
    store.put_call(call(rid, 2, (user, edited, tool), Message(role="assistant", content="2"), parent_id=f"c-{rid}-0"))
    store.put_call(call(rid, 3, (Message(role="user", content="other"),), asks, thread="sub"))
    store.put_rollout(end(rollout(0), output='{"x": 1}', verdict="right", step=0))
    ids = np.arange(4, dtype=np.int32)
    sample = Sample(
        rollout_id=rid, ids=ids, mask=np.array([False, True, True, False]), logprobs=np.zeros(4, np.float32),
        versions=ids, segments=(Segment(call_id=f"c-{rid}-0", start=1, stop=3),), masked={"over_budget": 2},
    )  # fmt: skip
    store.put_samples("run", 0, [sample], [])
    store.flush()

    detail = rollout_detail(cuts_of(store, rid))
    first, second, third, sub = detail["calls"]
    assert (first["messages_from"], [m["content"] for m in first["messages"]]) == (0, ["1 + 1?"])
    assert (second["messages_from"], [m["role"] for m in second["messages"]]) == (2, ["tool"])
    assert (third["messages_from"], third["messages"][0]["content"]) == (1, "I will calculate.")
    assert (sub["messages_from"], sub["thread"]) == (0, "sub")
    assert first["reply"]["tool_calls"] == [dict(asks.tool_calls[0])]
    assert (first["tools"], first["versions"], first["held_s"], first["duration_s"]) == (["calc"], [2, 3], 0.5, 1.5)
    assert detail["samples"] == [{"tokens": 4, "trained": 2, "calls": [f"c-{rid}-0"], "masked": {"over_budget": 2}}]
    assert detail["rollout"]["verdict"] == "right" and detail["rollout"]["state"] == "succeeded"
    with pytest.raises(UnknownIdError):
        rollout_detail(cuts_of(store, "r-none"))
