"""A loop that writes what it puts: order, who writes what, and that nothing hangs on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_records import call, same, turns

from lightning_lab.store import Store, StoreError
from lightning_lab.store.errors import DiskError
from lightning_lab.store.transaction import Put, Transaction

LOOP, WRITER = "loop", "store-writer store.sqlite"


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was done in which thread, in order: (step, thread)."""
    steps: list[tuple[str, str]] = []
    write, commit = Transaction.write, Transaction.commit

    def watched(self: Transaction, puts: Sequence[Put]) -> list[int | StoreError]:
        steps.append((" ".join(put.method for put in puts), threading.current_thread().name))
        return write(self, puts)

    def committed(self: Transaction) -> None:
        steps.append(("commit", threading.current_thread().name))
        commit(self)

    monkeypatch.setattr(Transaction, "write", watched)
    monkeypatch.setattr(Transaction, "commit", committed)
    return steps


class Loop:
    """An event loop in a thread of its own, on which a store writes."""

    def __init__(self, store: Store) -> None:
        self.loop = asyncio.new_event_loop()
        self._store = store
        self._thread = threading.Thread(target=self._run, name=LOOP)
        self._thread.start()
        self.end_hosting: Callable[[], None] = self.do(lambda: store.write_on(self.loop))

    def do(self, work: Callable[[], Any]) -> Any:
        """Run it there, and wait."""

        async def there() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(there(), self.loop).result(20)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()


@pytest.fixture
def loop(store: Store) -> Iterator[Loop]:
    running = Loop(store)
    yield running
    if not running.loop.is_closed():
        running.end_hosting()
        running.stop()


def test_the_loop_writes_and_the_thread_commits(store: Store, loop: Loop, writers: list[tuple[str, str]]) -> None:
    calls = turns(3)
    futures = loop.do(lambda: [*map(store.put_call, calls), store.mark_delivered(calls[0].id)])
    assert [future.result(20) for future in futures] == [1, 2, 3, 4]
    assert writers == [("call call call delivered", LOOP), ("commit", WRITER)]
    stored = store.calls("r-1")
    assert same(stored[0], dataclasses.replace(calls[0], delivered=True))
    assert all(same(left, right) for left, right in zip(stored[1:], calls[1:], strict=True))


def test_a_crowd_gathers_while_the_loop_is_busy(
    store: Store, loop: Loop, writers: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer: nobody waits for the end of the window then."""

    async def busy() -> list[Any]:
        futures = []
        for at in range(10):
            futures.append(store.put_call(call(f"c-{at}")))
            time.sleep(0.005)  # noqa: ASYNC251 - the loop is busy
            await asyncio.sleep(0)
        return futures

    monkeypatch.setattr("lightning_lab.store.hosting.WINDOW_S", 600.0)
    for future in loop.do(lambda: [store.put_call(call(f"c-before-{at}")) for at in range(4)]):
        future.result(20)
    writers.clear()
    for future in asyncio.run_coroutine_threadsafe(busy(), loop.loop).result(20):
        future.result(20)
    assert writers == [(" ".join(["call"] * 10), LOOP), ("commit", WRITER)]


def test_others_and_what_is_large_are_the_threads(store: Store, loop: Loop, writers: list[tuple[str, str]]) -> None:
    store.put_call(call("c-elsewhere")).result(20)
    loop.do(lambda: store.put_event("log", "run")).result(20)
    loop.do(lambda: store.put_call(call("c-large", prompt=np.arange(1 << 16)))).result(20)
    assert {thread for _, thread in writers} == {WRITER}


def test_order_of_puts_is_order_of_commits(store: Store, loop: Loop, writers: list[tuple[str, str]]) -> None:
    """Small ones of the loop, large ones of the loop and those of another thread, all at once."""
    futures = []
    lock = threading.Lock()

    def put(name: str, prompt: object) -> None:
        with lock:
            futures.append(store.put_call(call(name, prompt=prompt)))

    def elsewhere() -> None:
        for at in range(200):
            put(f"c-other-{at}", (1, at))

    loop.do(lambda: put("c-first", (1, 2)))
    futures[0].result(20)
    other = threading.Thread(target=elsewhere)
    other.start()
    for at in range(200):
        loop.do(lambda at=at: put(f"c-{at}", np.arange(1 << 16) if at % 50 == 0 else (1, 2, at)))
    other.join()
    assert [future.result(20) for future in futures] == list(range(1, 402))
    assert {thread for step, thread in writers if step != "commit"} == {LOOP, WRITER}
    assert {thread for step, thread in writers if step == "commit"} == {WRITER}


def test_a_bad_record_fails_alone(store: Store, loop: Loop) -> None:
    good, bad = turns(5), call("c-bad", logprobs=np.array(["x", "y"]))
    futures = loop.do(lambda: [store.put_call(one) for one in (*good[:2], bad, *good[2:])])
    assert isinstance(futures.pop(2).exception(20), StoreError)
    assert [future.result(20) for future in futures] == [1, 2, 3, 4, 5]
    assert all(same(left, right) for left, right in zip(store.calls("r-1"), good, strict=True))


def test_what_is_no_record_is_refused_in_its_future(store: Store, loop: Loop) -> None:
    refused, stored = loop.do(lambda: [store.put_call(None), store.put_call(call("c-1"))])  # type: ignore[arg-type]
    assert isinstance(refused.exception(20), StoreError)
    assert stored.result(20) == 1


def test_nobody_waits_for_a_loop_that_stands_still(store: Store, loop: Loop, writers: list[tuple[str, str]]) -> None:
    go, put = threading.Event(), threading.Event()

    def stand_still() -> None:
        store.put_call(call("c-1"))
        put.set()
        go.wait(20)

    loop.loop.call_soon_threadsafe(stand_still)
    put.wait(20)
    store.flush()
    assert [one.id for one in store.calls("r-1")] == ["c-1"]
    go.set()
    assert writers[0] == ("call", WRITER)


def test_a_loop_that_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    loop = Loop(store)
    futures = []

    def last_words() -> None:
        futures.extend(store.put_call(call(f"c-{at}")) for at in range(5))
        loop.loop.stop()

    loop.loop.call_soon_threadsafe(last_words)
    loop.stop()
    store.put_event("log", "run").result(20)
    store.close()
    assert [future.result(20) for future in futures] == [1, 2, 3, 4, 5]


def test_closing_commits_what_the_loop_has_put(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.sqlite")
    loop = Loop(store)

    def put_and_close() -> list:
        futures = [store.put_call(call(f"c-{at}")) for at in range(5)]
        store.close()
        return futures

    assert [future.result(20) for future in loop.do(put_and_close)] == [1, 2, 3, 4, 5]
    refused = loop.do(lambda: store.put_call(call("c-late")))
    assert "closed" in str(refused.exception(20))
    loop.end_hosting()
    loop.stop()


def test_afterwards_the_thread_writes(store: Store, loop: Loop, writers: list[tuple[str, str]]) -> None:
    loop.end_hosting()
    loop.do(lambda: store.put_call(call("c-1"))).result(20)
    assert writers == [("call", WRITER), ("commit", WRITER)]


def test_hosting_that_has_ended_ends_no_other(store: Store, loop: Loop, writers: list[tuple[str, str]]) -> None:
    loop.end_hosting()
    second = Loop(store)
    loop.end_hosting()
    second.do(lambda: store.put_call(call("c-1"))).result(20)
    second.end_hosting()
    second.stop()
    assert writers[0] == ("call", LOOP)


def test_a_second_loop_is_anybody(store: Store, loop: Loop, writers: list[tuple[str, str]]) -> None:
    second = Loop(store)
    second.do(lambda: store.put_call(call("c-1"))).result(20)
    second.end_hosting()
    second.stop()
    loop.do(lambda: store.put_call(call("c-2"))).result(20)
    assert [thread for step, thread in writers if step == "call"] == [WRITER, LOOP]


@pytest.mark.parametrize("step", ["write", "commit"])
def test_a_dead_disk_fails_by_name(store: Store, loop: Loop, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def dead(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    loop.do(lambda: store.put_call(call("c-1"))).result(20)
    monkeypatch.setattr(Transaction, step, dead)
    failed = loop.do(lambda: [store.put_call(call("c-2")), store.mark_delivered("c-1")])
    assert all(isinstance(future.exception(20), DiskError) for future in failed)
    monkeypatch.undo()
    assert isinstance(loop.do(lambda: store.put_call(call("c-3"))).exception(20), DiskError)
    assert [one.id for one in store.calls("r-1")] == ["c-1"]
