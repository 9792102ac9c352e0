"""Order, isolation of bad records, terminal states, counters, the live feed, death."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_records import call, rollout, same, sample, turns

from lightning_lab.records import INFRASTRUCTURE_OUTCOMES, Outcome, RolloutState
from lightning_lab.store import Store, StoreError
from lightning_lab.store.errors import (
    ReadOnlyError,
    StoreBusyError,
    StoreClosedError,
    TerminalStateError,
    UnknownIdError,
)

HERE = Path(__file__).parent


def test_order_of_puts_is_order_of_commits(store: Store) -> None:
    futures = [store.put_event("log", "run", str(i)) for i in range(500)]
    assert [future.result() for future in futures] == list(range(1, 501))
    assert [event.subject for event in store.events()] == [str(i) for i in range(500)]


def test_event_queries(store: Store) -> None:
    for i in range(30):
        store.put_event("phase" if i % 3 == 0 else "log", f"run-{i % 2}", data={"i": i})
    store.flush()
    assert [event.data["i"] for event in store.events(run_id="run-1", kind="phase")] == [3, 9, 15, 21, 27]
    assert [event.data["i"] for event in store.events(after=10, run_id="run-0", limit=2)] == [10, 12]
    store.put_event("other", "run-0").result()
    assert [event.data["i"] for event in store.events(after=26, kind=("phase", "log"))] == [26, 27, 28, 29]
    assert store.events(kind=()) == []


def test_one_bad_record_fails_alone(store: Store) -> None:
    good = [store.put_event("log", "run", str(i)) for i in range(50)]
    bad = [
        store.put_event("log", "run", data={"x": object()}),
        store.put_rollout(rollout("r-nan", reward=float("nan"))),
        store.put_call(call("c-1", prompt=(1,), logprobs=np.array(["x", "y"]))),
        store.put_samples(
            "run", 0, [sample("r-half"), dataclasses.replace(sample("r-half"), mask=np.ones(1, bool))], []
        ),
        store.mark_delivered("c-unknown"),
        store.put_event("log", "\ud800"),
        store.put_run(None),  # type: ignore[arg-type]
    ]
    good += [store.put_event("log", "run", str(i)) for i in range(50, 100)]
    assert [future.result() for future in good] == list(range(1, 101))
    for future in bad:
        assert isinstance(future.exception(), StoreError), future
    assert isinstance(bad[4].exception(), UnknownIdError)
    assert store.samples("r-half") == []
    assert [event.subject for event in store.events()] == [str(i) for i in range(100)]


def test_a_group_with_bad_calls_keeps_the_good_ones(store: Store) -> None:
    """Everything is in one commit: what is written together falls apart into single puts, and nothing is half in."""
    go = threading.Event()
    unsubscribe = store.subscribe(lambda events: go.wait(10))
    store.put_rollout(rollout("r-1", "running"))
    calls = turns(40, "r-1", new=5)
    good = [store.put_call(item) for item in calls[:20]]
    again = store.put_call(calls[3])
    broken = store.put_call(dataclasses.replace(calls[20], logprobs=np.array(["x"])))
    good += [store.put_call(item) for item in calls[20:]]
    good += [store.mark_delivered(item.id) for item in calls]
    unknown = store.mark_delivered("c-none")
    unsubscribe()
    go.set()
    assert [future.result() for future in good] == list(range(2, 82))
    assert all(isinstance(future.exception(), StoreError) for future in (again, broken, unknown))
    read = store.calls("r-1")
    assert all(same(left, dataclasses.replace(right, delivered=True)) for left, right in zip(read, calls, strict=True))
    assert store.counts("run")["calls"] == store.call_totals(["r-1"])["r-1"][0] == 40
    assert [event.seq for event in store.events()] == list(range(1, 82))


def test_a_call_is_put_once(store: Store) -> None:
    store.put_call(call())
    with pytest.raises(StoreError, match="c-1"):
        store.put_call(call(prompt=(9,))).result()
    assert store.calls("r-1")[0].prompt_ids.tolist() == [1, 2, 3]
    assert store.call_totals(["r-1"]) == {"r-1": (1, 2)}


def test_delivery(store: Store) -> None:
    store.put_call(call()).result()
    assert not store.calls("r-1")[0].delivered
    store.mark_delivered("c-1")
    store.mark_delivered("c-1").result()
    assert store.calls("r-1")[0].delivered


ENDED = rollout(state="succeeded", reward=1.0, outcome=Outcome.COMPLETED, finished_at=5.0, stdout="out")


@pytest.mark.parametrize(
    "change",
    [
        {"state": RolloutState.FAILED},
        {"state": RolloutState.RUNNING},
        {"reward": 0.0},
        {"reward": None},
        {"stdout": ""},
        {"verdict": "better"},
        {"attempt": 2},
        {"outcome": Outcome.LOST},
        {"finished_at": 6.0},
    ],
)
def test_terminal_states_are_final(store: Store, change: dict) -> None:
    store.put_rollout(ENDED)
    with pytest.raises(TerminalStateError, match="r-1"):
        store.put_rollout(dataclasses.replace(ENDED, **change)).result()
    assert store.rollout("r-1") == ENDED
    assert store.counts("run")["succeeded"] == store.counts("run")["total"] == 1


def test_consumption_after_the_end(store: Store) -> None:
    store.put_rollout(ENDED)
    store.put_rollout(ENDED).result()  # saying it twice changes nothing
    consumed = dataclasses.replace(ENDED, step=3, advantage=-0.5, weight=0.125)
    store.put_rollout(consumed).result()
    assert store.rollout("r-1") == consumed
    store.put_rollout(ENDED).result()  # back to the buffer, after a resume
    assert store.rollout("r-1") == ENDED
    with pytest.raises(StoreError, match="advantage"):
        store.put_rollout(dataclasses.replace(ENDED, advantage=float("inf"))).result()


def test_a_rollout_stays_in_its_run(store: Store) -> None:
    store.put_rollout(rollout())
    with pytest.raises(StoreError, match="cannot move to other"):
        store.put_rollout(rollout(run_id="other")).result()


def test_filters_in_creation_order(store: Store) -> None:
    for i in range(12):
        store.put_rollout(
            rollout(f"r-{i}", run_id=f"run-{i % 2}", group_id=f"g-{i // 4}", mode="eval" if i == 2 else "train")
        )
    store.put_rollout(rollout("r-4", "running", run_id="run-0", group_id="g-1", step=7)).result()
    ids = lambda **wanted: [found.id for found in store.rollouts(**wanted)]  # noqa: E731
    assert ids() == [f"r-{i}" for i in range(12)]
    assert ids(run_id="run-0", group_id="g-1") == ["r-4", "r-6"]
    assert ids(state="running") == ids(state=RolloutState.RUNNING) == ids(step=7) == ids(step=np.int64(7)) == ["r-4"]
    assert ids(run_id="run-0", mode="eval") == ["r-2"]
    assert ids(run_id="run-0", step=8) == []
    rows = {event.subject: event.data["row"] for event in store.events(run_id="run-0", kind="rollout")}
    assert rows == {f"r-{i}": i // 2 for i in range(0, 12, 2)}


def test_unknown_ids_have_names(store: Store) -> None:
    for read in (store.run, store.rollout):
        with pytest.raises(UnknownIdError, match="nowhere"):
            read("nowhere")
    assert store.calls("nowhere") == store.samples("nowhere") == store.steps("nowhere") == []
    assert set(store.counts("nowhere").values()) == {0}


STATES = st.sampled_from(list(RolloutState))
OUTCOMES = st.none() | st.sampled_from(list(Outcome))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(puts=st.lists(st.tuples(st.integers(0, 4), STATES, OUTCOMES, st.booleans()), max_size=25))
def test_counters_equal_a_recount(store: Store, puts: list) -> None:
    """Calls before and after their rollout's first put, refused changes of terminal states, all orders."""
    run_id = f"run-{len(store.events())}"
    for i, (index, state, outcome, with_call) in enumerate(puts):
        id_ = f"{run_id}-{index}"
        if with_call:
            store.put_call(call(f"{run_id}-c-{i}", rollout_id=id_, ordinal=i))
        store.put_rollout(rollout(id_, state, run_id=run_id, outcome=outcome))
    store.put_event("log", run_id).result()
    rollouts = store.rollouts(run_id)
    calls = [item for found in rollouts for item in store.calls(found.id)]
    expected = {state.value: sum(found.state == state for found in rollouts) for state in RolloutState}
    expected["total"] = len(rollouts)
    expected["infrastructure"] = sum(found.outcome in INFRASTRUCTURE_OUTCOMES for found in rollouts)
    expected["calls"] = len(calls)
    expected["prompt_tokens"] = sum(len(item.prompt_ids) for item in calls)
    expected["sampled_tokens"] = sum(len(item.sampled_ids) for item in calls)
    assert store.counts(run_id) == expected
    totals = store.call_totals([found.id for found in rollouts])
    assert all(totals[found.id][0] == len(store.calls(found.id)) for found in rollouts)


def test_call_totals_of_more_rollouts_than_sql_takes_parameters(store: Store) -> None:
    store.put_call(call(rollout_id="r-1900")).result()
    totals = store.call_totals([f"r-{i}" for i in range(2000)])
    assert len(totals) == 2000 and totals["r-1900"] == (1, 2) and totals["r-0"] == (0, 0)


def test_who_called_since(store: Store) -> None:
    assert store.last_event() == 0
    assert store.called("run", after=0, upto=100) == {}
    store.put_rollout(rollout("r-1", "running"))
    store.put_rollout(rollout('r-"2" 🙂', "running"))
    store.put_rollout(rollout("r-3", "running", run_id="other"))
    for at, rollout_id in enumerate(["r-1", "r-1", 'r-"2" 🙂', "r-3"]):
        store.put_call(call(f"c-{at}", rollout_id=rollout_id))
    store.put_event("log", "run").result()
    assert store.last_event() == 8
    assert store.called("run", after=0, upto=6) == {"r-1": (2, 4), 'r-"2" 🙂': (1, 2)}
    assert store.called("run", after=5, upto=6) == {'r-"2" 🙂': (1, 2)}
    assert store.called("run", after=0, upto=4) == {"r-1": (2, 4)}
    assert store.called("run", after=6, upto=6) == {}


def test_counting_needs_no_scan(store: Store) -> None:
    """However many rollouts: the panel asks ten times a second."""
    connection = sqlite3.connect(store.path)
    for sql in (
        "SELECT * FROM run_counts WHERE run_id = 'x'",
        "SELECT * FROM call_totals WHERE rollout_id IN ('x', 'y')",
        "SELECT * FROM calls JOIN call_tokens ON call = n WHERE rollout_id = 'x' AND (NULL IS NULL OR attempt = NULL)",
        "SELECT * FROM rollouts LEFT JOIN rollout_texts ON rollout = n WHERE run_id = 'x' AND step = 3",
        "SELECT * FROM rollouts WHERE group_id = 'x'",
        "SELECT * FROM events WHERE run_id = 'x' AND kind = 'phase' AND seq > 5 ORDER BY seq LIMIT 5",
    ):
        plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}"))
        assert "SCAN" not in plan and "TEMP B-TREE" not in plan, (sql, plan)
    connection.close()


def test_many_threads(store: Store) -> None:
    seen: list[int] = []
    store.subscribe(lambda events: seen.extend(event.seq for event in events))

    def work(name: int) -> None:
        for item in turns(10, f"r-{name}", new=5, seed=name):
            store.put_call(item)
            store.put_rollout(rollout(f"r-{name}", "running"))
            store.counts("run")
            store.calls(f"r-{name}")
        store.put_rollout(rollout(f"r-{name}", "succeeded")).result()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.flush()
    assert seen == list(range(1, 16 * 21 + 1))
    assert store.counts("run")["succeeded"] == 16 and store.counts("run")["calls"] == 160
    assert len({found.id for found in store.rollouts("run")}) == 16
    for name in range(16):
        read = store.calls(f"r-{name}")
        wanted = turns(10, f"r-{name}", new=5, seed=name)
        assert all((a.prompt_ids == b.prompt_ids).all() for a, b in zip(read, wanted, strict=True))


def test_subscribers(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    first: list[tuple[int, str]] = []
    second: list[int] = []
    names: set[str] = set()

    def broken(events: object) -> None:
        names.add(threading.current_thread().name)
        raise RuntimeError("subscriber is broken")

    store.subscribe(broken)
    unsubscribe = store.subscribe(lambda events: first.extend((event.seq, event.kind) for event in events))
    store.subscribe(lambda events: second.extend(event.seq for event in events))
    with caplog.at_level(logging.ERROR):
        store.put_rollout(rollout())
        store.put_rollout(rollout(reward=float("nan")))  # refused: no event
        store.put_event("log", "run").result()
        store.flush()
    assert first == [(1, "rollout"), (2, "log")]
    assert "subscriber is broken" in caplog.text and len(names) == 1
    unsubscribe()
    unsubscribe()
    store.put_event("log", "run")
    store.flush()
    store.flush()
    assert len(first) == 2 and second == [1, 2, 3]


def test_a_watcher_is_told_that_there_is_something(store: Store) -> None:
    seen: list[int] = []
    end = store.watch(lambda: seen.append(len(store.events())))
    store.put_event("log", "run").result()
    store.flush()  # a barrier is no news
    assert seen == [1]
    end()
    end()
    store.put_event("log", "run").result()
    store.flush()
    assert seen == [1]


def test_a_subscriber_sees_what_a_reader_sees(store: Store) -> None:
    told: list = []
    agree: list[bool] = []

    def check(events: object) -> None:
        told.extend(events)
        agree.append(store.events(after=told[0].seq - 1) == told)  # already committed, equal in every field

    store.subscribe(check)
    for i in range(20):
        store.put_event("log", "run", data={"x": float("nan"), "numpy": np.float32(0.5), "i": i})
    store.flush()
    assert len(told) == 20 and all(agree)


def test_waiting_for_oneself_is_refused(store: Store) -> None:
    errors: list[BaseException] = []

    def wait(events: object) -> None:
        try:
            store.flush()
        except StoreError as error:
            errors.append(error)

    store.subscribe(wait)
    store.put_event("log", "run").result()
    store.flush()
    assert "subscriber" in str(errors[0])


async def test_a_cancelled_waiter_neither_stops_nor_loses_the_put(store: Store) -> None:
    waiter = asyncio.wrap_future(store.put_call(call()))
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await asyncio.wrap_future(store.put_event("log", "run"))
    assert len(store.calls("r-1")) == 1


def test_closing(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    futures = [store.put_event("log", "run", str(i)) for i in range(300)]
    closers = [threading.Thread(target=store.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    store.close()
    for closer in closers:
        closer.join()
    assert all(future.result() for future in futures)
    assert isinstance(store.put_event("log", "run").exception(), StoreClosedError)
    with pytest.raises(StoreClosedError):
        store.events()
    assert not (tmp_path / "s.sqlite-wal").exists()
    with Store(tmp_path / "s.sqlite") as again:
        assert len(again.events()) == 300


def test_closing_from_a_subscriber(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    told = threading.Event()
    store.subscribe(lambda events: (store.close(), told.set()))
    store.put_event("log", "run").result()
    assert told.wait(10)
    store.close()  # waits until the other close is through
    with Store(tmp_path / "s.sqlite") as again:
        assert len(again.events()) == 1


def test_a_forgotten_store_closes_itself(tmp_path: Path) -> None:
    script = "import sys; from lightning_lab.store import Store; s = Store(sys.argv[1]); s.put_event('log', 'run')"
    subprocess.run([sys.executable, "-c", script, tmp_path / "s.sqlite"], check=True, env=_environment(), timeout=60)
    with Store(tmp_path / "s.sqlite", read_only=True) as store:
        assert len(store.events()) == 1


def test_one_writer_per_store(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path), pytest.raises(StoreBusyError, match="this process"):
        Store(path)
    child = _child("hold", path)
    assert child.stdout.readline() == "holding\n"
    with pytest.raises(StoreBusyError, match=f"pid {child.pid}"):
        Store(path)
    with Store(path, read_only=True) as reader:
        assert len(reader.events()) == 1
        assert isinstance(reader.put_event("log", "run").exception(), ReadOnlyError)
    child.kill()
    child.wait()
    child.stdout.close()
    with Store(path) as store:
        assert store.put_event("log", "run").result() == 2


def test_a_fork_is_refused_not_stuck(store: Store) -> None:
    store.put_event("log", "run").result()
    pid = os.fork()
    if pid == 0:
        refused = isinstance(store.put_event("log", "run").exception(timeout=5), StoreError)
        try:
            store.events()
        except StoreError:
            store.close()
            os._exit(0 if refused else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.put_event("log", "run").result() == 2


@pytest.mark.parametrize("durability", ["normal", "fsync"])
def test_what_was_acknowledged_survives_sigkill(tmp_path: Path, durability: str) -> None:
    path = tmp_path / "s.sqlite"
    child = _child(f"calls-{durability}", path)
    acknowledged = [child.stdout.readline().strip() for _ in range(60)]
    os.kill(child.pid, signal.SIGKILL)
    acknowledged += child.stdout.read().split()  # what it still managed to say
    child.wait()
    child.stdout.close()
    with Store(path) as store:
        stored = {item.id: item for name in range(4) for item in store.calls(f"r-{name}")}
        assert set(acknowledged) <= set(stored)
        assert store.counts("run")["calls"] == len(stored) == len(store.events(kind="call"))
        for name in range(4):
            for read, put in zip(store.calls(f"r-{name}"), turns(150, f"r-{name}", new=3, seed=name), strict=False):
                assert read.id == put.id and (read.prompt_ids == put.prompt_ids).all()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_dead_disk_fails_everything_by_name(tmp_path: Path) -> None:
    """In a child that may not write files beyond 500 KB, as on a full disk."""
    child = _child("full", tmp_path / "s.sqlite")
    output, _ = child.communicate(timeout=60)
    report = dict(line.split("=") for line in output.split())
    assert report["named"] == report["later"] == report["flush"] == "DiskError"
    assert report["hung"] == "0"
    with Store(tmp_path / "s.sqlite") as store:
        assert len(store.events(kind="call")) == int(report["acknowledged"]) > 0


@pytest.mark.parametrize("durability, level", [("normal", 1), ("fsync", 2)])
def test_durability_sets_how_commits_are_synced(tmp_path: Path, durability: str, level: int) -> None:
    with Store(tmp_path / "s.sqlite", durability=durability) as store:  # type: ignore[arg-type]
        connection = store._writer._connection  # type: ignore[union-attr]
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_refusal_is_logged_never_printed(tmp_path: Path) -> None:
    script = (
        "import sys; from lightning_lab.store import Store\n"
        "with Store(sys.argv[1]) as s: assert s.put_event('log', 'run', data={'x': object()}).exception()"
    )
    argv = [sys.executable, "-c", script, str(tmp_path / "s.sqlite")]
    done = subprocess.run(argv, check=True, env=_environment(), timeout=60, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_opening_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="folder exists"):
        Store(tmp_path / "missing" / "s.sqlite")
    with pytest.raises(StoreError, match=r"nothing\.sqlite"):
        Store(tmp_path / "nothing.sqlite", read_only=True)


def _environment() -> dict[str, str]:
    root = str(HERE.parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(HERE), os.environ.get("PYTHONPATH", "")])}


def _child(role: str, path: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, str(HERE / "store_child.py"), role, str(path)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=_environment())
