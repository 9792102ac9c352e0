"""What a group commit writes at its end: many rows in one statement.

SQLite works without the interpreter's lock and takes it again after every statement. A statement for each row would
make the writer queue for that lock behind whatever thread is busy, as often as there are rows.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any

from lightning_lab.records import Event
from lightning_lab.store import encoding as enc
from lightning_lab.store.errors import BadRecordError

_COLUMNS = {
    "contents": ("id", "hash", "kind", "body"),
    "calls": (
        *("n", "id", "rollout_id", "attempt", "ordinal", "delivered", "base", "base_length", "base_messages"),
        *("messages", "tools", "request", "reply", "prompt_tokens", "sampled_tokens", "body"),
    ),
    "call_tokens": ("call", "prompt", "sampled", "logprobs", "versions"),
    "call_totals": ("rollout_id", "calls", "prompt_tokens", "sampled_tokens"),
    "events": ("seq", "at", "kind", "run_id", "subject", "data"),
}
_CALL_VALUES = itemgetter(*_COLUMNS["calls"][1:])
_ON_CONFLICT = {
    "call_totals": " ON CONFLICT (rollout_id) DO UPDATE SET calls = calls + excluded.calls,"
    " prompt_tokens = prompt_tokens + excluded.prompt_tokens, sampled_tokens = sampled_tokens + excluded.sampled_tokens"
}
_AT_ONCE = 32
"""Rows of one statement; at most 999 parameters. SQLite keeps the statement of every size prepared."""
_IN_SIZES = (1, 2, 4, 8, 16, 32, 64, 500)
"""Values in one ``IN (…)``."""


@dataclass(slots=True)
class Numbers:
    """The next free keys. There is one writer, so nobody else gives any away."""

    event: int
    content: int
    call: int

    @classmethod
    def of(cls, connection: sqlite3.Connection) -> Numbers:
        """Those that follow what is stored."""
        tables = ("events", "seq"), ("contents", "id"), ("calls", "n")
        sql = "SELECT " + ", ".join(f"(SELECT coalesce(max({key}), 0) + 1 FROM {table})" for table, key in tables)
        return cls(*connection.execute(sql).fetchone())

    def copy(self) -> Numbers:
        return Numbers(self.event, self.content, self.call)


class Group:
    """Rows and sums that wait to be written, and the keys they got."""

    def __init__(self, connection: sqlite3.Connection, numbers: Numbers) -> None:
        self.numbers = numbers.copy()
        self.events: list[Event] = []
        self._connection = connection
        self._rows: dict[str, list[Sequence[Any]]] = {table: [] for table in _COLUMNS}
        self._totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        self._counts: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._delivered: list[int] = []

    def event(self, event: Event) -> None:
        """A line of the log."""
        text = enc.dump_json(event.data)
        self.numbers.event = event.seq + 1
        self.events.append(event)
        self._rows["events"].append((event.seq, event.at, event.kind, event.run_id, event.subject, text))

    def content(self, digest: bytes, kind: str, body: str) -> int:
        """A value that is not stored yet; returns its id."""
        ref = self.numbers.content
        self.numbers.content += 1
        self._rows["contents"].append((ref, digest, kind, body))
        return ref

    def call(self, row: Mapping[str, Any], tokens: Sequence[bytes]) -> int:
        """A call without its ``n``, and its prompt, sampled ids, log-probs and versions; returns that ``n``."""
        n = self.numbers.call
        self.numbers.call += 1
        self._rows["calls"].append((n, *_CALL_VALUES(row)))
        self._rows["call_tokens"].append((n, *tokens))
        totals = self._totals[row["rollout_id"]]
        for at, by in enumerate((1, row["prompt_tokens"], row["sampled_tokens"])):
            totals[at] += by
        return n

    def delivered(self, n: int) -> None:
        """The call with this number has reached its client."""
        self._delivered.append(n)

    def count(self, run_id: str, changes: Mapping[str, int]) -> None:
        """Add to the counters of a run."""
        counts = self._counts[run_id]
        for name, by in changes.items():
            counts[name] += by

    def write(self) -> None:
        """Write what waits. Raises `BadRecordError` where a call is stored already."""
        self._rows["call_totals"] = [(rollout_id, *totals) for rollout_id, totals in self._totals.items()]
        self._totals.clear()
        for table, rows in self._rows.items():
            self._insert(table, rows)
            rows.clear()
        for run_id, counts in self._counts.items():
            self._add(run_id, {name: by for name, by in counts.items() if by})
        self._counts.clear()
        for size, some in in_pieces(self._delivered):
            self._connection.execute(f"UPDATE calls SET delivered = 1 WHERE n IN ({marks(size)})", some)
        self._delivered.clear()

    def _insert(self, table: str, rows: list[Sequence[Any]]) -> None:
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            values = list(chain.from_iterable(some))
            try:
                self._connection.execute(_insert_statement(table, len(some)), values)
            except sqlite3.IntegrityError as error:  # alone in its statement, when a record is tried alone
                raise BadRecordError(
                    f"Call {values[1]} cannot be stored: {error}. A call is put once; what is stored was not changed."
                ) from error

    def _add(self, run_id: str, counts: Mapping[str, int]) -> None:
        if counts:
            sets = ", ".join(f"{name} = {name} + ?" for name in counts)
            self._connection.execute(f"UPDATE run_counts SET {sets} WHERE run_id = ?", (*counts.values(), run_id))


@cache
def _insert_statement(table: str, rows: int) -> str:
    columns = _COLUMNS[table]
    values = ", ".join([f"({marks(len(columns))})"] * rows)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {values}{_ON_CONFLICT.get(table, '')}"


def marks(count: int) -> str:
    """Parameters of a statement."""
    return ", ".join("?" * count)


def in_pieces(values: Sequence[Any]) -> Iterator[tuple[int, list[Any]]]:
    """``values`` for ``IN (…)``: few sizes, filled up with the last value, so that SQLite finds each prepared."""
    start = 0
    while start < len(values):
        left = len(values) - start
        size = next((size for size in _IN_SIZES if size >= left), _IN_SIZES[-1])
        some = list(values[start : start + size])
        yield size, some + some[-1:] * (size - len(some))
        start += size
