"""The panel's rollout table: rows in the order of the run, and what has not been sent yet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from lightning_lab.notebook.plain import well_formed
from lightning_lab.records import Outcome, Rollout, RolloutState

MAX_TASK_CHARS = 120
MODES = ("train", "eval", "single")
STATES = tuple(state.value for state in RolloutState)
OUTCOMES = ("", *(outcome.value for outcome in Outcome))

_FIXED_BYTES = 8 * 4 + 6 * 8 + 3  # the i32, f64 and code columns of one row


@dataclass(frozen=True, slots=True)
class Merged:
    """What a step made of a rollout's calls; None before, and for staleness also where no token trains."""

    samples: int | None = None
    breaks: int | None = None
    staleness: int | None = None
    """Publishes between its oldest trained token and its update."""


_UNMERGED = Merged()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRow:
    """One line of the grid. Absent numbers are None; ``row`` is the position in the run, counted from 0."""

    row: int
    id: str
    group: str
    task: str
    harness: str
    mode: str
    state: str
    outcome: str
    step: int | None
    version: int | None
    reward: float | None
    advantage: float | None
    weight: float | None
    calls: int
    tokens: int
    samples: int | None = None
    breaks: int | None = None
    staleness: int | None = None
    created_at: float | None
    started_at: float | None
    finished_at: float | None

    @property
    def merged(self) -> Merged:
        return Merged(self.samples, self.breaks, self.staleness)

    def wire_bytes(self) -> int:
        """Size of this row in a frame. Its texts are well-formed."""
        return _FIXED_BYTES + len(orjson.dumps((self.id, self.group, self.task, self.harness)))


def rollout_row(
    row: int, rollout: Rollout, *, calls: int, tokens: int, version: int | None, merged: Merged = _UNMERGED
) -> RolloutRow:
    return RolloutRow(
        row=row,
        id=well_formed(rollout.id),
        group=well_formed(rollout.group_id),
        task=well_formed(rollout.task.prompt[:MAX_TASK_CHARS]),
        harness=well_formed(rollout.harness.name),
        mode=rollout.mode,
        state=str(rollout.state),
        outcome=str(rollout.outcome or ""),
        step=rollout.step,
        version=version,
        reward=rollout.reward,
        advantage=rollout.advantage,
        weight=rollout.weight,
        calls=calls,
        tokens=tokens,
        samples=merged.samples,
        breaks=merged.breaks,
        staleness=merged.staleness,
        created_at=rollout.created_at or None,
        started_at=rollout.started_at,
        finished_at=rollout.finished_at,
    )


class RolloutTable:
    """All rows of one run. Changed rows go out first; a cyclic cursor repeats the rest, which heals any loss.

    Of a burst the newest go first: a panel that misses many asks for them from the beginning on, and both meet.
    """

    def __init__(self) -> None:
        self.rows: list[RolloutRow] = []
        self._position: dict[str, int] = {}
        self._changed: dict[int, None] = {}
        self._cursor = 0
        self._lock = threading.Lock()  # the bridge takes rows while a cell reads the feed

    def get(self, rollout_id: str) -> RolloutRow | None:
        position = self._position.get(rollout_id)
        return None if position is None else self.rows[position]

    def put(self, row: RolloutRow) -> None:
        """Append, or replace the row at its position; equal rows are not sent again."""
        with self._lock:
            self._put(row)

    def _put(self, row: RolloutRow) -> None:
        if row.row == len(self.rows):
            self.rows.append(row)
            self._position[row.id] = row.row
        elif self.rows[row.row] == row:
            return
        else:
            self.rows[row.row] = row
        self._changed.pop(row.row, None)  # to the end: it is the latest change
        self._changed[row.row] = None

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def take_changed(self, budget: int) -> list[RolloutRow]:
        """Changed rows, latest change first, that fit into ``budget`` bytes; they count as sent."""
        with self._lock:
            taken = list(_within(budget, (self.rows[position] for position in reversed(self._changed))))
            for row in taken:
                del self._changed[row.row]
        return taken

    def take_slice(self, budget: int) -> list[RolloutRow]:
        """The next rows of the cycle, at most one whole round."""
        count = len(self.rows)
        cycle = (self.rows[(self._cursor + i) % count] for i in range(count))
        taken = list(_within(budget, cycle))
        self._cursor = (self._cursor + len(taken)) % max(1, count)
        return taken


def _within(budget: int, rows: Iterator[RolloutRow]) -> Iterator[RolloutRow]:
    for row in rows:
        budget -= row.wire_bytes()
        if budget < 0:
            return
        yield row
