"""Reads: committed data only, from any thread, never waiting for the writer."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_lab.records import Break, Call, Event, Floats, Rollout, RolloutState, Run, Sample, Step
from lightning_lab.store import encoding as enc
from lightning_lab.store import rows
from lightning_lab.store.errors import StoreClosedError, StoreError, UnknownIdError
from lightning_lab.store.lru import LruBytes
from lightning_lab.store.rebuild import rebuild_calls
from lightning_lab.store.schema import open_reader

_CONTENT_BYTES = 64 * 1024 * 1024
_CHUNK = 500
"""SQL parameters per statement; old SQLite builds allow 999."""

_COUNTS = (*(state.value for state in RolloutState), "infrastructure", "calls", "prompt_tokens", "sampled_tokens")


class Reader:
    """Queries over a pool of read-only connections: no two threads ever share one, and threads may come and go."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = os.getpid()
        self._idle: list[sqlite3.Connection] = [open_reader(path)]
        self._borrowed = 0
        self._lock = threading.Condition()
        self._closed = False
        self._contents: LruBytes[int, Any] = LruBytes(_CONTENT_BYTES)

    def close(self) -> None:
        """Idempotent. Reads that run are waited for, so that the writer's connection can be the last one."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: not self._borrowed)
            while self._idle:
                self._idle.pop().close()

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection inside one read transaction: all its queries see the same commit.

        Whatever cannot be understood, in a damaged or foreign file, is a `StoreError`.
        """
        connection = self._borrow()
        try:
            connection.execute("BEGIN")
            yield connection
        except (sqlite3.Error, LookupError, TypeError, ValueError) as error:
            raise StoreError(
                f"Reading {self._path} failed ({type(error).__name__}: {error}). The file is damaged or was changed."
            ) from error
        finally:
            connection.rollback()
            self._give_back(connection)

    def _borrow(self) -> sqlite3.Connection:
        if os.getpid() != self._pid:
            raise StoreError(f"The store {self._path} was opened before a fork; open it again in this process.")
        with self._lock:
            if self._closed:
                raise StoreClosedError(f"The store {self._path} is closed. Open it again to read.")
            connection = self._idle.pop() if self._idle else open_reader(self._path)
            self._borrowed += 1
            return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            self._idle.append(connection)
            self._borrowed -= 1
            self._lock.notify_all()

    def runs(self, run_id: str | None = None) -> list[Run]:
        sql = (
            "SELECT id, kind, state, created_at, finished_at, reason, settings FROM runs"
            " WHERE ? IS NULL OR id = ? ORDER BY n"
        )
        with self._snapshot() as connection:
            return [rows.run_record(row) for row in connection.execute(sql, (run_id, run_id))]

    def rollouts(self, wanted: Mapping[str, Any]) -> list[Rollout]:
        """``wanted``: column → value, all must match."""
        where = " AND ".join(f"{name} = ?" for name in wanted) or "1"
        order = "position" if "run_id" in wanted else "n"
        tables = "rollouts LEFT JOIN rollout_texts ON rollout = n"
        sql = f"SELECT rollouts.*, body FROM {tables} WHERE {where} ORDER BY {order}"
        with self._snapshot() as connection:
            found = _dicts(connection, sql, tuple(wanted.values()))
            contents = self._load(connection, {row[name] for row in found for name in ("task", "harness")})
            return [rows.rollout_record(row, contents) for row in found]

    def rollout_heads(self, ids: Sequence[str]) -> list[Rollout]:
        with self._snapshot() as connection:
            found = []
            for chunk in _chunks(ids):
                sql = f"SELECT *, NULL AS body FROM rollouts WHERE id IN ({_marks(chunk)})"
                found += _dicts(connection, sql, chunk)
            contents = self._load(connection, {row[name] for row in found for name in ("task", "harness")})
            found.sort(key=lambda row: row["n"])
            return [rows.rollout_record(row, contents) for row in found]

    def calls(self, rollout_id: str, attempt: int | None) -> list[Call]:
        with self._snapshot() as connection:
            rebuilt = rebuild_calls(connection, rollout_id, attempt)
            refs = {ref for call in rebuilt for ref in enc.unpack_refs(call.row["messages"]).tolist()}
            refs.update(call.row[name] for call in rebuilt for name in ("tools", "request", "reply"))
            contents = self._load(connection, refs)
            rebuilt.sort(key=lambda call: (call.row["attempt"], call.row["ordinal"], call.row["n"]))
            return [rows.call_record(call, contents) for call in rebuilt]

    def samples(self, rollout_id: str) -> list[Sample]:
        sql = (
            "SELECT rollout_id, ids, mask, logprobs, versions, segments, masked FROM samples"
            " WHERE rollout_id = ? ORDER BY sample_index"
        )
        with self._snapshot() as connection:
            return [rows.sample_record(row) for row in connection.execute(sql, (rollout_id,))]

    def breaks(self, run_id: str | None, rollout_id: str | None) -> list[Break]:
        where, values = _where({"run_id": run_id, "rollout_id": rollout_id})
        sql = f"SELECT rollout_id, cause, body FROM breaks WHERE {where} ORDER BY n"
        with self._snapshot() as connection:
            return [rows.break_record(row) for row in connection.execute(sql, values)]

    def token_stats(self, rollout_id: str) -> list[Mapping[str, Floats]]:
        sql = "SELECT sample_index, name, numbers FROM token_stats WHERE rollout_id = ? ORDER BY sample_index, rowid"
        stats: list[dict[str, Floats]] = []
        with self._snapshot() as connection:
            for index, name, numbers in connection.execute(sql, (rollout_id,)):
                stats.extend({} for _ in range(index + 1 - len(stats)))
                stats[index][name] = enc.unpack_floats(numbers)
        return list(stats)

    def steps(self, run_id: str) -> list[Step]:
        with self._snapshot() as connection:
            found = connection.execute("SELECT * FROM steps WHERE run_id = ? ORDER BY step", (run_id,))
            return [rows.step_record(row) for row in found]

    def events(self, after: int, run_id: str | None, kinds: Collection[str] | None, limit: int) -> list[Event]:
        where, values = _where({"run_id": run_id})
        if kinds is not None:
            where, values = f"{where} AND kind IN ({_marks(kinds)})", (*values, *kinds)
        sql = f"SELECT * FROM events WHERE seq > ? AND {where} ORDER BY seq LIMIT ?"
        with self._snapshot() as connection:
            return [rows.event_record(row) for row in connection.execute(sql, (after, *values, limit))]

    def counts(self, run_id: str) -> dict[str, int]:
        sql = f"SELECT {', '.join(_COUNTS)} FROM run_counts WHERE run_id = ?"
        with self._snapshot() as connection:
            row = connection.execute(sql, (run_id,)).fetchone() or (0,) * len(_COUNTS)
        counts = dict(zip(_COUNTS, row, strict=True))
        return {"total": sum(counts[state.value] for state in RolloutState), **counts}

    def call_totals(self, rollout_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        totals = dict.fromkeys(rollout_ids, (0, 0))
        with self._snapshot() as connection:
            for chunk in _chunks(list(totals)):
                sql = f"SELECT rollout_id, calls, sampled_tokens FROM call_totals WHERE rollout_id IN ({_marks(chunk)})"
                totals.update({row[0]: (row[1], row[2]) for row in connection.execute(sql, chunk)})
        return totals

    def last_event(self) -> int:
        with self._snapshot() as connection:
            return int(connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    def called(self, run_id: str, after: int, upto: int) -> dict[str, tuple[int, int]]:
        # One row: for each row the reader would wait for the interpreter, which the gateway of a busy kernel holds.
        sql = (
            "SELECT json_group_array(json_array(rollout_id, calls, sampled_tokens)) FROM call_totals"
            " WHERE rollout_id IN (SELECT json_extract(data, '$.rollout_id') FROM events"
            " WHERE run_id = ? AND kind = 'call' AND seq > ? AND seq <= ?)"
        )
        with self._snapshot() as connection:
            (found,) = connection.execute(sql, (run_id, after, upto)).fetchone()
        return {rollout_id: (calls, tokens) for rollout_id, calls, tokens in enc.load_json(found)}

    def call_tokens(self, call_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        tokens: dict[str, tuple[int, int]] = {}
        with self._snapshot() as connection:
            for chunk in _chunks(call_ids):
                sql = f"SELECT id, prompt_tokens, sampled_tokens FROM calls WHERE id IN ({_marks(chunk)})"
                tokens.update({row[0]: (row[1], row[2]) for row in connection.execute(sql, chunk)})
        return tokens

    def call_times(self, rollout_ids: Sequence[str]) -> dict[str, list[tuple[float, float, float]]]:
        times: dict[str, list[tuple[float, float, float]]] = {id: [] for id in rollout_ids}
        read = ", ".join(f"json_extract(body, '$.{name}')" for name in ("arrived_at", "started_at", "finished_at"))
        with self._snapshot() as connection:
            for chunk in _chunks(list(times)):
                sql = f"SELECT rollout_id, {read} FROM calls WHERE rollout_id IN ({_marks(chunk)}) ORDER BY n"
                for rollout_id, *at in connection.execute(sql, chunk):
                    times[rollout_id].append((at[0], at[1], at[2]))
        return times

    def last_finished(self, rollout_id: str) -> float | None:
        sql = "SELECT json_extract(body, '$.finished_at') FROM calls WHERE n = (SELECT max(n) FROM calls c WHERE"
        with self._snapshot() as connection:
            row = connection.execute(f"{sql} c.rollout_id = ?)", (rollout_id,)).fetchone()
        return None if row is None else float(row[0])

    def merged(self, rollout_ids: Sequence[str]) -> dict[str, tuple[int, int, int | None]]:
        samples: Counter[str] = Counter()
        breaks: Counter[str] = Counter()
        oldest: dict[str, int] = {}
        with self._snapshot() as connection:
            for chunk in _chunks(rollout_ids):
                here = f"WHERE rollout_id IN ({_marks(chunk)})"
                for id_, versions, mask in connection.execute(
                    f"SELECT rollout_id, versions, mask FROM samples {here}", chunk
                ):
                    samples[id_] += 1
                    trained = enc.unpack_runs(versions)[enc.unpack_mask(mask)]
                    if len(trained):
                        oldest[id_] = min(int(trained.min()), oldest.get(id_, int(trained[0])))
                breaks.update(id_ for (id_,) in connection.execute(f"SELECT rollout_id FROM breaks {here}", chunk))
        return {id_: (samples[id_], breaks[id_], oldest.get(id_)) for id_ in rollout_ids}

    def manifest(self) -> dict[str, Any]:
        with self._snapshot() as connection:
            return {key: enc.load_json(value) for key, value in connection.execute("SELECT * FROM manifest")}

    def vocabulary(self) -> dict[int, bytes]:
        with self._snapshot() as connection:
            return dict(connection.execute("SELECT * FROM vocabulary"))

    def _load(self, connection: sqlite3.Connection, refs: Iterable[int]) -> dict[int, Any]:
        """Contents by id. They never change, so equal ones are shared between all records that are read."""
        loaded = {ref: self._contents.get(ref) for ref in refs}
        for chunk in _chunks([ref for ref, value in loaded.items() if value is None]):
            sql = f"SELECT id, kind, body FROM contents WHERE id IN ({_marks(chunk)})"
            for ref, kind, body in connection.execute(sql, chunk):
                loaded[ref] = rows.content_record(kind, body)
                self._contents.put(ref, loaded[ref], len(body))
        return loaded


def one(found: Sequence[Any], kind: str, id_: str) -> Any:
    """The only element. Raises `UnknownIdError`."""
    if not found:
        raise UnknownIdError(f"No {kind} {id_} in this store. Committed ones only are seen; flush() waits for commits.")
    return found[0]


def _where(wanted: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    given = {name: value for name, value in wanted.items() if value is not None}
    return " AND ".join(f"{name} = ?" for name in given) or "1", tuple(given.values())


def _dicts(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    cursor = connection.execute(sql, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _chunks(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK))


def _marks(items: Collection[Any]) -> str:
    return ", ".join("?" * len(items))
