"""What is put is what is read, for every text, number and array."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_records import (
    HARNESS,
    JSON_VALUES,
    OBJECTS,
    TEXTS,
    call,
    conversations,
    rollout,
    run,
    same,
    sample,
    turns,
)

from lightning_lab.records import Break, BreakCause, Message, Outcome, Sampling, Step, Task
from lightning_lab.store import Store, StoreError
from lightning_lab.store.rebuild import rebuild_last
from lightning_lab.store.trails import Leaf, Trail
from lightning_lab.store.transaction import Transaction

_numbers = itertools.count()
PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fresh(store: Store) -> str:
    """A rollout id that no other example used."""
    return f"r-{store.path.name}-{next(_numbers)}"


@PROPERTY
@given(calls=conversations())
def test_calls_are_rebuilt_exactly(store: Store, calls: list) -> None:
    rollout_id = fresh(store)
    calls = [dataclasses.replace(item, id=f"{rollout_id}-{item.id}", rollout_id=rollout_id) for item in calls]
    for item in calls:
        store.put_call(item)
    store.flush()
    read = store.calls(rollout_id)
    assert [item.id for item in read] == [item.id for item in sorted(calls, key=lambda c: (c.attempt, c.ordinal))]
    by_id = {item.id: item for item in calls}
    assert all(same(item, by_id[item.id]) for item in read)
    first = store.calls(rollout_id, attempt=1)
    assert [item.id for item in first] == [item.id for item in calls if item.attempt == 1]


@settings(PROPERTY, max_examples=12)
@given(calls=conversations())
def test_calls_continue_after_a_reopen(tmp_path: Path, calls: list) -> None:
    path = tmp_path / f"{next(_numbers)}.sqlite"
    for item in calls:
        with Store(path) as store:
            store.put_call(item).result()
    with Store(path, read_only=True) as store:
        by_id = {item.id: item for item in calls}
        assert all(same(item, by_id[item.id]) for item in store.calls("r-1"))


@PROPERTY
@given(
    text=TEXTS, answer=JSON_VALUES, fields=OBJECTS, reward=st.none() | st.floats(allow_nan=False, allow_infinity=False)
)
def test_rollouts(store: Store, text: str, answer: object, fields: dict, reward: float | None) -> None:
    task = Task(id="t", prompt=text, answer=answer, source=text, fields=fields)
    texts = dict.fromkeys(("verdict", "output", "error", "stdout", "stderr"), text)
    put = rollout(fresh(store), "failed", task=task, reward=reward, outcome=Outcome.TIMEOUT, exit_code=-9, **texts)
    store.put_rollout(put).result()
    assert store.rollout(put.id) == put


@PROPERTY
@given(data=OBJECTS, metrics=st.dictionaries(TEXTS, st.floats(), max_size=3))
def test_events_and_steps(store: Store, data: dict, metrics: dict) -> None:
    seq = store.put_event("log", "run", "subject", data).result()
    assert store.events(after=seq - 1)[0].data == data
    index = next(_numbers)
    fields = {
        "version": 2,
        "rollout_ids": ("r-1", "r-2"),
        "started_at": 1.0,
        "finished_at": 2.0,
        "skipped": "no_signal",
    }
    put = Step(run_id="run", index=index, metrics=metrics, **fields)
    store.put_step(put).result()
    read = store.steps("run")[-1]
    assert dataclasses.replace(read, metrics={}) == dataclasses.replace(put, metrics={})
    assert {k: str(v) for k, v in read.metrics.items()} == {k: str(v) for k, v in metrics.items()}  # NaN = NaN


def test_only_the_latest_calls_and_what_they_build_on_are_read_back(store: Store) -> None:
    """A writer that forgot a conversation costs what that conversation has, however many others the rollout had."""
    line = turns(4, new=40)
    others = [
        call(f"c-other-{at}", prompt=range(9000 + at, 9100), messages=(Message(role="user", content=f"other {at}"),))
        for at in range(6)
    ]
    for item in (*line[:3], *others, line[3]):
        store.put_call(item)
    store.flush()
    connection = sqlite3.connect(store.path)
    read = rebuild_last(connection, "r-1", 1, 2)
    assert [one.row["id"] for one in read] == [*(item.id for item in line[:3]), "c-other-5", line[3].id]
    assert read[-1].prompt.tolist() == line[3].prompt_ids.tolist()
    assert rebuild_last(connection, "r-1", 2, 2) == []
    connection.close()


def test_large_conversations_side_by_side_are_kept_and_few() -> None:
    """The ends of eight fit whatever their size; of many unrelated ones the oldest go."""
    trail = Trail()
    for at in range(100):
        ids = np.full(100_000, at, np.int32)
        trail.add(Leaf(at, ids, np.array([at])), trail.base(ids, np.array([at])))
    assert trail.nbytes == 8 * (400_000 + 8)
    assert trail.base(np.full(100_001, 92, np.int32), np.array([92])).ids == 100_000
    assert trail.base(np.full(100_001, 91, np.int32), np.array([91])).leaf is None
    longer = np.full(100_001, 92, np.int32)
    trail.add(Leaf(200, longer, np.array([92])), trail.base(longer, np.array([92])))
    assert trail.nbytes == 8 * (400_000 + 8) + 4


def test_a_conversation_is_read_back_as_views_of_one_array(store: Store) -> None:
    """So reading costs what is new, and comparing two of its calls costs nothing."""
    calls = turns(5, new=40)
    fork = dataclasses.replace(calls[3], id="fork", ordinal=9, prompt_ids=np.append(calls[1].prompt_ids, np.int32(7)))
    for item in (*calls, fork):
        store.put_call(item)
    store.flush()
    *line, forked = store.calls("r-1")
    assert all(same(left, right) for left, right in zip(line, calls, strict=True)) and same(forked, fork)
    array = line[0].prompt_ids.base
    assert array is not None and array.nbytes == 4 * (len(calls[4].prompt_ids) + 40)
    assert all(item.prompt_ids.base is array and item.sampled_ids.base is array for item in line)
    assert not np.shares_memory(forked.prompt_ids, array) and not any(item.prompt_ids.flags.writeable for item in line)


@pytest.mark.parametrize("length", [-1, 81, 2**40])
def test_a_base_that_is_too_short_is_a_damaged_file(store: Store, length: int) -> None:
    for item in turns(2, new=40):
        store.put_call(item)
    store.flush()
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE calls SET base_length = ? WHERE base IS NOT NULL", (length,))
    connection.close()
    with pytest.raises(StoreError, match="damaged"):
        store.calls("r-1")


def test_a_megabyte_on_one_line(store: Store) -> None:
    line = "x\0\ud83d" * 350_000
    store.put_rollout(rollout(stdout=line))
    store.put_call(call(messages=(Message(role="tool", content=line),))).result()
    assert store.rollout("r-1").stdout == line
    assert store.calls("r-1")[0].messages[0].content == line


def test_logprobs_keep_nan_and_infinities(store: Store) -> None:
    logprobs = np.array([np.nan, -np.inf, -0.0, 1e-45], np.float32)
    store.put_call(call(sampled=(1, 2, 3, 4), logprobs=logprobs, versions=np.array([1, 1, 2, 1], np.int32))).result()
    read = store.calls("r-1")[0]
    assert read.logprobs.tobytes() == logprobs.tobytes()
    assert read.versions.tolist() == [1, 1, 2, 1]
    assert not read.logprobs.flags.writeable


def test_json_holds_no_nan(store: Store) -> None:
    store.put_event("policy", "run", data={"x": math.nan, "y": [math.inf], "\ud800": math.nan}).result()
    assert store.events()[-1].data == {"x": None, "y": [None], "\ud800": None}


def test_settings_of_a_run(store: Store) -> None:
    put = run(settings={"big": 10**40, "sampling": Sampling(), "path": Path("/x"), "rate": np.float32(0.5), 3: (1, 2)})
    store.put_run(put).result()
    expected = {"big": 10**40, "path": "/x", "rate": 0.5, "3": [1, 2]}
    assert expected.items() <= store.run("run").settings.items()
    store.put_run(dataclasses.replace(put, settings={}, state="failed", finished_at=9.0, reason="why")).result()
    assert store.runs() == [run(settings={}, state="failed", finished_at=9.0, reason="why")]


def test_samples_breaks_and_token_stats(store: Store) -> None:
    odd = sample(n=5)
    odd.logprobs[0] = np.nan  # outside the mask: against the rules, kept all the same
    put = [sample(), odd, sample("r-2", n=0)]
    windows = {"before": "a\ud800", "after": "b\0", "index": 3}
    broken = Break(rollout_id="r-1", call_id="c-2", previous_call_id="c-1", cause=BreakCause.RETOKENIZED, **windows)
    store.put_samples("run", 0, put, [broken])
    stats = {"entropy": np.array([np.nan, 1.5], np.float32), "ratio": np.ones(2, np.float32)}
    store.put_token_stats("run", 0, "r-1", 1, stats).result()
    read = store.samples("r-1")
    assert same(read[0], put[0]) and same(read[1], put[1]) and same(store.samples("r-2")[0], put[2])
    assert store.breaks(rollout_id="r-1") == store.breaks(run_id="run") == [broken]
    assert store.breaks(run_id="other") == []
    first, second = store.token_stats("r-1")
    assert first == {}
    assert list(second) == ["entropy", "ratio"]
    assert all(second[name].tobytes() == stats[name].tobytes() for name in stats)


def test_a_step_done_again_replaces_its_samples(store: Store) -> None:
    ones = {"entropy": np.ones(6, np.float32)}
    store.put_samples("run", 4, [sample(), sample()], [])
    store.put_token_stats("run", 4, "r-1", 0, ones)
    store.put_samples("run", 5, [sample(n=4)], [])
    store.flush()
    assert [len(item.ids) for item in store.samples("r-1")] == [4]
    assert store.token_stats("r-1") == []
    store.put_token_stats("run", 5, "r-1", 0, ones)
    store.put_samples("run", 5, [sample(n=6)], []).result()  # the same step: what was computed stays
    assert [list(stats) for stats in store.token_stats("r-1")] == [["entropy"]]


def test_wide_integers_and_lists_are_accepted(store: Store) -> None:
    store.put_call(call(prompt_ids=np.array([1, 2], np.int64), logprobs=[-1.0, None], versions=[1, 1])).result()
    read = store.calls("r-1")[0]
    assert (read.prompt_ids.dtype, read.logprobs.dtype) == (np.int32, np.float32)
    assert np.isnan(read.logprobs[1])


@pytest.mark.parametrize("ids", [np.array([0.5, 1.0]), np.array([[1, 2]]), np.array([2**31])])
def test_what_are_no_ids_is_refused(store: Store, ids: np.ndarray) -> None:
    with pytest.raises(StoreError, match="prompt_ids"):
        store.put_call(call(prompt_ids=ids)).result()
    assert store.events() == []


def test_equal_contents_are_stored_once(store: Store) -> None:
    for ordinal in range(20):
        store.put_rollout(rollout(f"r-{ordinal}"))
        store.put_call(call(f"c-{ordinal}", rollout_id=f"r-{ordinal}"))
    store.flush()
    assert _one(store, "SELECT count(*) FROM contents WHERE kind = 'message'") == 2  # question and reply
    assert _one(store, "SELECT count(*) FROM contents WHERE kind IN ('task', 'harness', 'tools', 'request')") == 4
    assert store.rollout("r-7").harness == HARNESS


def test_growth_is_linear_in_what_is_new(store: Store) -> None:
    calls = turns(40, new=400)
    for item in calls:
        store.put_call(item)
    store.flush()
    text = sum(len(item.reply.content) + len(item.messages[-1].content) for item in calls)
    new = text + sum(
        len(item.sampled_ids) * (4 + 4 + 4) + 400 * 4 for item in calls
    )  # ids, log-probs, versions; prompt
    store.close()
    assert store.path.stat().st_size <= 3 * new
    with Store(store.path, read_only=True) as again:
        assert all(same(left, right) for left, right in zip(again.calls("r-1"), calls, strict=True))


def test_rollouts_that_take_turns_take_what_is_new(store: Store) -> None:
    """Many conversations in each commit, every call with its whole history: at most three times the new bytes."""
    rollouts = [turns(40, f"r-{at}", new=100, seed=at) for at in range(8)]
    for calls in zip(*rollouts, strict=True):
        for item in calls:
            store.put_call(item)
            store.mark_delivered(item.id)
    store.flush()
    every = [item for calls in rollouts for item in calls]
    text = sum(len(item.reply.content) + len(item.messages[-1].content) for item in every)
    new = text + len(every) * 100 * (4 + 4 + 4 + 4)  # prompt; sampled ids, log-probs, versions
    assert sum(len(item.prompt_ids) for item in every) * 4 > 5 * new  # the ids alone, if every prompt were stored
    store.close()
    assert store.path.stat().st_size <= 3 * new
    with Store(store.path, read_only=True) as again:
        for calls in rollouts:
            wanted = [dataclasses.replace(item, delivered=True) for item in calls]
            assert all(same(*pair) for pair in zip(again.calls(calls[0].rollout_id), wanted, strict=True))


def test_growth_stays_linear_when_memory_is_short(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_lab.store.calls.TRAIL_BYTES", 0)
    with Store(store.path.with_name("small.sqlite")) as small:
        both = [turns(10, "r-1"), turns(10, "r-2", seed=1)]  # each evicts the other
        for pair in zip(*both, strict=True):
            for item in pair:
                small.put_call(item)
        small.flush()
        assert _one(small, "SELECT max(length(prompt)) FROM call_tokens") == 50 * 4
        for rollout_id, calls in zip(("r-1", "r-2"), both, strict=True):
            assert all(same(left, right) for left, right in zip(small.calls(rollout_id), calls, strict=True))


def test_calls_without_ids_share_their_messages(store: Store) -> None:
    empty = np.zeros(0, np.int32)
    for item in turns(10):
        store.put_call(dataclasses.replace(item, prompt_ids=empty, sampled_ids=empty, logprobs=empty, versions=empty))
    store.flush()
    assert _one(store, "SELECT max(length(messages)) FROM calls") == 2 * 8
    assert [len(item.messages) for item in store.calls("r-1")] == list(range(1, 20, 2))


def test_branches_build_on_the_longest_prefix(store: Store) -> None:
    prompts = [(1, 2, 3), (1, 2, 9), (1, 2, 3, 4, 5, 6), (1, 2, 9, 4, 5, 7), (1, 2, 3, 4, 5, 6, 4, 5, 8)]
    for ordinal, prompt in enumerate(prompts):
        store.put_call(call(f"c-{ordinal}", prompt=prompt, ordinal=ordinal))
    store.flush()
    assert _column(store, "SELECT base_length FROM calls ORDER BY n") == [0, 2, 5, 5, 8]
    assert [tuple(item.prompt_ids) for item in store.calls("r-1")] == prompts


def test_attempts_never_mix(store: Store) -> None:
    store.put_call(call("c-1"))
    store.put_call(call("c-2", attempt=2)).result()
    assert _column(store, "SELECT base FROM calls") == [None, None]


def test_a_failed_put_leaves_no_trace_in_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call must not build on a call that was rolled back."""
    first, second, third = turns(3)
    store.put_call(first).result()
    event, failing = Transaction.event, {second.id}

    def fail_once(self: Transaction, at: float, kind: str, run_id: str, subject: str, data: dict) -> int:
        if subject in failing:
            raise ValueError("no")
        return event(self, at, kind, run_id, subject, data)

    monkeypatch.setattr(Transaction, "event", fail_once)
    assert isinstance(store.put_call(second).exception(), StoreError)
    store.put_call(third).result()
    assert [item.id for item in store.calls("r-1")] == [first.id, third.id]
    assert same(store.calls("r-1")[1], third)


def _column(store: Store, sql: str) -> list:
    with sqlite3.connect(store.path) as connection:
        values = [row[0] for row in connection.execute(sql)]
    connection.close()
    return values


def _one(store: Store, sql: str) -> object:
    return _column(store, sql)[0]
