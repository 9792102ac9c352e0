"""Frames: what the panel is pushed. A JSON header and binary columns, at most `MAX_FRAME_BYTES` together.

Every frame holds cumulative counters; deltas hold what changed, key frames a cyclic slice of everything. So a
panel that lost frames, or was reloaded, is right again after one cycle. No store, no socket.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import orjson

from lightning_lab.notebook.columns import Columns
from lightning_lab.notebook.plain import json_bytes
from lightning_lab.notebook.requests import Reply
from lightning_lab.notebook.rows import MODES, OUTCOMES, STATES, RolloutRow, RolloutTable
from lightning_lab.records import SCHEMA_VERSION

MAX_FRAME_BYTES = 256 * 1024
MAX_REPLY_BYTES = 4 * 1024 * 1024
"""An answer that was asked for may be larger than a frame that comes ten times a second."""
MAX_STEP_ROWS = 200
_ENVELOPE_BYTES = 8 * 1024  # message headers, column descriptions, brackets

_JSON = ("id", "group", "task", "harness")
_CODES = {"mode": MODES, "state": STATES, "outcome": OUTCOMES}
_INTS = ("step", "version", "calls", "samples", "breaks", "tokens", "staleness")
_FLOATS = ("reward", "advantage", "weight", "created_at", "started_at", "finished_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the lab is doing now, in the words of the wire. All values are JSON."""

    lab: str
    lab_state: str
    run: Mapping[str, Any] | None = None
    phase: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    reward: Mapping[str, Any] = field(default_factory=dict)
    steps: Sequence[Mapping[str, Any]] = ()
    """All steps of the run; frames carry slices of them."""
    problems: Sequence[Mapping[str, Any]] = ()
    """Ranked findings, worst first."""
    oldest: Mapping[str, Any] | None = None
    """The rollout that has run longest, and what it waits for; None when none runs."""
    paused: bool = False
    """Whether the user paused the lab; that the learner holds calls is said by the phase."""
    unsandboxed: bool = True
    """Whether agents of this machine see the user's files."""
    limit: tuple[int, str] | None = None
    """How many agents may run at one time, and who says so (`Controllers.limit`); None where nothing can run."""
    at: float = field(default_factory=time.time, compare=False)

    def fields(self) -> dict[str, Any]:
        """The header fields that are whole in every frame and in every saved view."""
        return {
            "v": SCHEMA_VERSION,
            "lab": self.lab,
            "lab_state": self.lab_state,
            "unsandboxed": self.unsandboxed,
            "paused": self.paused,
            "run": self.run,
            "phase": self.phase,
            "counters": self.counters,
            "reward": self.reward,
            "oldest": self.oldest,
            "limit": None if self.limit is None else {"agents": self.limit[0], "by": self.limit[1]},
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    header: Mapping[str, Any]
    buffers: Sequence[bytes]

    def wire_bytes(self) -> int:
        return len(orjson.dumps(self.header)) + sum(len(buffer) for buffer in self.buffers)


class FrameBuilder:
    """Turns snapshots and the rollout table of one run into frames."""

    def __init__(self, table: RolloutTable) -> None:
        self.table = table
        self._steps_sent = 0
        self._steps_cursor = 0

    def has_news(self, snapshot: Snapshot) -> bool:
        """Whether rows or steps wait to be sent."""
        return self.table.has_changes or len(snapshot.steps) > self._steps_sent

    def build(self, snapshot: Snapshot, *, seq: int, key: bool) -> Frame:
        """One frame: the news that fit, and with ``key`` a slice of what was sent before."""
        header = {**snapshot.fields(), "seq": seq, "at": snapshot.at}
        budget = MAX_FRAME_BYTES - _ENVELOPE_BYTES - len(orjson.dumps(header))
        first, steps = self._take_steps(snapshot.steps, budget // 2, key)
        header["steps"] = {"from": first, "rows": steps}
        budget -= len(orjson.dumps(steps))
        rows = self.table.take_changed(budget)
        if key:
            rows = rows + self._slice_beside(rows, budget)
        columns, buffers = encode_rows(rows)
        header["rollouts"] = {"rows": len(rows), "columns": columns}
        return Frame(header=header, buffers=buffers)

    def _slice_beside(self, rows: Sequence[RolloutRow], budget: int) -> list[RolloutRow]:
        sent = {row.row for row in rows}
        left = budget - sum(row.wire_bytes() for row in rows)
        return [row for row in self.table.take_slice(left) if row.row not in sent]

    def _take_steps(
        self, steps: Sequence[Mapping[str, Any]], budget: int, key: bool
    ) -> tuple[int, Sequence[Mapping[str, Any]]]:
        """New steps first; with nothing new, a key frame repeats the next `MAX_STEP_ROWS`."""
        if len(steps) > self._steps_sent:
            taken = _fitting(steps[self._steps_sent : self._steps_sent + MAX_STEP_ROWS], budget)
            first, self._steps_sent = self._steps_sent, self._steps_sent + len(taken)
            return first, taken
        if not key or not steps:
            return 0, ()
        first = self._steps_cursor if self._steps_cursor < len(steps) else 0
        taken = _fitting(steps[first : first + MAX_STEP_ROWS], budget)
        self._steps_cursor = first + len(taken)
        return first, taken


def _fitting(rows: Sequence[Mapping[str, Any]], budget: int) -> Sequence[Mapping[str, Any]]:
    for count, row in enumerate(rows):
        budget -= len(orjson.dumps(row)) + 1
        if budget < 0:
            return rows[:count]
    return rows


def encode_rows(rows: Sequence[RolloutRow]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Rows as columns: descriptions for the header, and one buffer for each."""
    if not rows:
        return [], []
    columns = Columns()
    columns.numbers("row", "i32", [row.row for row in rows])
    for name in _JSON:
        columns.texts(name, list(map(attrgetter(name), rows)))
    for name, words in _CODES.items():
        place = {word: code for code, word in enumerate(words)}
        columns.codes(name, [place[word] for word in map(attrgetter(name), rows)], words)
    for name in _INTS:
        columns.numbers(name, "i32", [-1 if value is None else value for value in map(attrgetter(name), rows)])
    for name in _FLOATS:
        columns.numbers(name, "f64", [math.nan if value is None else value for value in map(attrgetter(name), rows)])
    return columns.described, columns.buffers


def rows_reply(rows: Sequence[RolloutRow], start: int) -> Reply:
    """As many rows as fit into one answer, from ``start`` on."""
    taken = _rows_within(rows, start, MAX_REPLY_BYTES)
    columns, buffers = encode_rows(taken)
    return Reply({"from": start, "rows": len(taken), "columns": columns}, buffers)


def frame_reply(table: RolloutTable, snapshot: Snapshot, *, rows_from: int, steps_from: int) -> Reply:
    """A whole run in as many frames as one asks for: rows and steps from where the last answer ended.

    ``left``: whether there is more of either.
    """
    steps = _fitting(snapshot.steps[steps_from:], MAX_REPLY_BYTES // 2)
    rows = _rows_within(table.rows, rows_from, MAX_REPLY_BYTES // 2)
    columns, buffers = encode_rows(rows)
    header = {
        **snapshot.fields(),
        "seq": 1,
        "at": snapshot.at,
        "steps": {"from": steps_from, "rows": list(steps)},
        "rollouts": {"rows": len(rows), "columns": columns},
        "left": steps_from + len(steps) < len(snapshot.steps) or rows_from + len(rows) < len(table.rows),
    }
    return Reply(header, buffers)


def _rows_within(rows: Sequence[RolloutRow], start: int, budget: int) -> Sequence[RolloutRow]:
    stop = start
    while stop < len(rows) and (budget := budget - rows[stop].wire_bytes()) >= 0:
        stop += 1
    return rows[start:stop]


def plain_columns(rows: Sequence[RolloutRow]) -> list[dict[str, Any]]:
    """Rows as columns of JSON values, for saved views. Absent numbers are as on the wire: -1 and null."""
    convert: dict[str, Callable[[Any], Any]] = dict.fromkeys(_INTS, _int)
    names = ("row", *_JSON, *_CODES, *_INTS, *_FLOATS)
    return [{"name": name, "values": [convert.get(name, _same)(getattr(row, name)) for row in rows]} for name in names]


def plain_bytes(row: RolloutRow) -> int:
    """Size of a row in `plain_columns`, as JSON."""
    return sum(len(json_bytes(value)) + 1 for column in plain_columns([row]) for value in column["values"])


def _same(value: Any) -> Any:
    return value


def _int(value: int | None) -> int:
    return -1 if value is None else value
