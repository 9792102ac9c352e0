"""What one put means in tables: the log line and its projections. Used by one thread at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_lab.records import (
    INFRASTRUCTURE_OUTCOMES,
    TERMINAL_STATES,
    Break,
    Call,
    Event,
    Floats,
    Rollout,
    Run,
    Sample,
    Step,
    Task,
)
from lightning_lab.store import encoding as enc
from lightning_lab.store import rows
from lightning_lab.store.calls import Calls
from lightning_lab.store.contents import Contents
from lightning_lab.store.errors import BadRecordError, StoreError, TerminalStateError
from lightning_lab.store.group import Group, Numbers
from lightning_lab.store.lru import LruBytes
from lightning_lab.store.purge import purge

_RUN_BYTES = 4 * 1024 * 1024
_ENTRY_BYTES = 300
_INFRASTRUCTURE = frozenset(outcome.value for outcome in INFRASTRUCTURE_OUTCOMES)
_TERMINAL = frozenset(state.value for state in TERMINAL_STATES)


@dataclass(slots=True, eq=False)
class Put:
    """A record on its way into the store: a method of `Transaction` and what it is called with."""

    method: str
    arguments: tuple[Any, ...]
    contents: Sequence[int] = ()
    """Of a call: the ids of its messages and, last, its reply, looked up for the whole group."""


class Transaction:
    """Writes puts, each group of them in one transaction of the file, and collects their events.

    Calls, their delivery and the log's lines wait in a `Group`, to be written together; every other statement writes
    first what waits, so that the order of puts holds.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.events: list[Event] = []
        self._connection = connection
        self._group = Group(connection, Numbers.of(connection))
        self._contents = Contents(connection)
        self._calls = Calls(connection, self._contents)
        self._runs: LruBytes[str, str] = LruBytes(_RUN_BYTES)

    def write(self, puts: Sequence[Put]) -> list[int | StoreError]:
        """Run the puts of a group: for each the seq of its event, or why it could not be written. `commit` follows.

        All together; where one fails, one by one, and what fails leaves nothing behind. Raises when the disk is dead.
        """
        self.events = []
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            return list(self._together(puts))
        except Exception as error:
            if is_dead_disk(error):
                raise
        self._connection.execute("ROLLBACK")
        self._connection.execute("BEGIN IMMEDIATE")
        return [self._alone(put) for put in puts]

    def commit(self) -> None:
        """Make what was written last; it may be called in another thread. Raises when the disk is dead."""
        self._connection.execute("COMMIT")

    def _alone(self, put: Put) -> int | StoreError:
        self._connection.execute("SAVEPOINT put")
        try:
            outcome: int | StoreError = self._together([put])[0]
        except Exception as error:
            if is_dead_disk(error):
                raise
            self._connection.execute("ROLLBACK TO put")
            outcome = error if isinstance(error, StoreError) else _bad(error)
        self._connection.execute("RELEASE put")
        return outcome

    def _together(self, puts: Sequence[Put]) -> list[int]:
        """All, or none: when this raises, what it wrote is to be rolled back."""
        numbers = self._group.numbers.copy()
        self._contents.begin()
        self._calls.begin()
        try:
            self._look_up([put for put in puts if put.method == "call"])
            seqs = [self._run(put) for put in puts]
            self._group.write()
        except BaseException:
            self._forget(numbers)
            raise
        self.events += self._group.events
        self._group = Group(self._connection, self._group.numbers)
        return seqs

    def _look_up(self, puts: Sequence[Put]) -> None:
        conversations = [(*call.messages, call.reply) for _, call in (put.arguments for put in puts)]
        for put, refs in zip(puts, self._contents.messages(self._group, conversations), strict=True):
            put.contents = refs

    def _run(self, put: Put) -> int:
        if put.method == "call":
            at, call = put.arguments
            return self.call(at, call, put.contents)
        seq: int = getattr(self, put.method)(*put.arguments)
        return seq

    def _forget(self, numbers: Numbers) -> None:
        """What was put did not last: memory of it is dropped, and read from the file when it is needed again."""
        self._group = Group(self._connection, numbers)
        self._contents.forget()
        self._calls.forget()
        self._runs.clear()

    def event(self, at: float, kind: str, run_id: str, subject: str, data: Mapping[str, Any]) -> int:
        """A line of the log. ``data``: plain JSON values, so that it is told as it will be read."""
        event = Event(seq=self._group.numbers.event, at=at, kind=kind, run_id=run_id, subject=subject, data=data)
        self._group.event(event)
        return event.seq

    def any_event(self, at: float, kind: str, run_id: str, subject: str, data: Mapping[str, Any]) -> int:
        """The same, from outside: ``data`` may hold whatever `encoding.dump_json` accepts.

        Who knows only the rollout (the gateway) leaves its run empty.
        """
        return self.event(at, kind, run_id or (self._run_of(subject) if subject else ""), subject, enc.plain(data))

    def purge(self, at: float, before: float) -> int:
        self._group.write()
        count = purge(self._connection, before, self._wordless)
        self._contents.forget_all()
        self._calls.forget_all()
        return self.event(at, "purge", "", "", {"before": before, "rollouts": count})

    def _wordless(self, task: Task) -> int:
        ref = self._contents.one(self._group, "task", task)
        self._group.write()
        return ref

    def run(self, at: float, run: Run) -> int:
        self._execute(
            "INSERT INTO runs (id, kind, state, created_at, finished_at, reason, settings) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, state = excluded.state,"
            " created_at = excluded.created_at, finished_at = excluded.finished_at, reason = excluded.reason,"
            " settings = excluded.settings",
            rows.run_row(run),
        )
        return self.event(at, "run", run.id, "", {"state": run.state, "kind": run.kind, "reason": run.reason})

    def rollout(self, at: float, rollout: Rollout) -> int:
        columns = rows.rollout_row(
            rollout,
            self._contents.one(self._group, "task", rollout.task),
            self._contents.one(self._group, "harness", rollout.harness),
        )
        late = rows.consumption(rollout)
        texts = rows.rollout_texts(rollout)
        stored = self._one(
            f"SELECT {', '.join(rows.ROLLOUT_COLUMNS)}, n, position, body"
            " FROM rollouts LEFT JOIN rollout_texts ON rollout = n WHERE id = ?",
            (rollout.id,),
        )
        if stored is None:
            position = self._insert_rollout(rollout, columns + late, texts)
            previous, previous_outcome = "", None
        else:
            *before, n, position, body = stored
            self._check_rollout(rollout, tuple(before), columns, (body or "") == texts)
            self._update_rollout(n, columns + late, texts if (body or "") != texts else None)
            previous, previous_outcome = before[3], before[5]
        self._count_rollout(rollout.run_id, previous, previous_outcome, columns[3], columns[5])
        if columns[3] in _TERMINAL:
            self._calls.end(rollout.id, rollout.attempt)
        data = {
            "row": position,
            "state": columns[3],
            "previous": previous,
            "attempt": rollout.attempt,
            "outcome": columns[5],
            "reward": columns[6],
            "mode": rollout.mode,
            "group_id": rollout.group_id,
            "step": late[0],
        }
        return self.event(at, "rollout", rollout.run_id, rollout.id, data)

    def _insert_rollout(self, rollout: Rollout, values: Sequence[Any], texts: str) -> int:
        self._execute("INSERT INTO run_counts (run_id) VALUES (?) ON CONFLICT DO NOTHING", (rollout.run_id,))
        (position,) = self._one(
            "SELECT queuing + running + succeeded + failed + cancelled FROM run_counts WHERE run_id = ?",
            (rollout.run_id,),
        ) or (0,)
        names = ["id", "position", *rows.ROLLOUT_COLUMNS, "step", "advantage", "weight"]
        cursor = self._execute(
            f"INSERT INTO rollouts ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
            (rollout.id, position, *values),
        )
        if texts:
            self._execute("INSERT INTO rollout_texts VALUES (?, ?)", (cursor.lastrowid, texts))
        # Calls may have been stored before their rollout was.
        self._execute(
            "UPDATE run_counts SET (calls, prompt_tokens, sampled_tokens) = (SELECT run_counts.calls + t.calls,"
            " run_counts.prompt_tokens + t.prompt_tokens, run_counts.sampled_tokens + t.sampled_tokens"
            " FROM call_totals t WHERE t.rollout_id = ?1)"
            " WHERE run_id = ?2 AND EXISTS (SELECT 1 FROM call_totals WHERE rollout_id = ?1)",
            (rollout.id, rollout.run_id),
        )
        return int(position)

    def _update_rollout(self, n: int, values: Sequence[Any], texts: str | None) -> None:
        names = [*rows.ROLLOUT_COLUMNS, "step", "advantage", "weight"]
        self._execute(f"UPDATE rollouts SET {', '.join(f'{name} = ?' for name in names)} WHERE n = ?", (*values, n))
        if texts is not None:
            self._execute("INSERT OR REPLACE INTO rollout_texts VALUES (?, ?)", (n, texts))

    def _check_rollout(
        self, rollout: Rollout, before: tuple[Any, ...], after: tuple[Any, ...], same_texts: bool
    ) -> None:
        if before[0] != after[0]:
            raise BadRecordError(f"Rollout {rollout.id} belongs to run {before[0]} and cannot move to {after[0]}.")
        if before[3] not in _TERMINAL or (before == after and same_texts):
            return
        changed = [name for name, old, new in zip(rows.ROLLOUT_COLUMNS, before, after, strict=True) if old != new]
        raise TerminalStateError(
            f"Rollout {rollout.id} has ended as {before[3]} and terminal states are final; this put would change "
            f"{', '.join(changed) or 'its texts'}. Only step, advantage and weight may still be set; it was not stored."
        )

    def _count_rollout(self, run_id: str, old: str, old_outcome: str | None, new: str, outcome: str | None) -> None:
        changes = {name: 0 for name in (old, new) if name}
        if old:
            changes[old] -= 1
        changes[new] += 1
        changes["infrastructure"] = (outcome in _INFRASTRUCTURE) - (old_outcome in _INFRASTRUCTURE)
        self._group.count(run_id, changes)

    def call(self, at: float, call: Call, contents: Sequence[int]) -> int:
        """``contents``: ids of the call's messages and of its reply."""
        prompt_tokens, sampled_tokens = self._calls.add(self._group, call, contents)
        run_id = self._run_of(call.rollout_id)
        if run_id:
            counted = {"calls": 1, "prompt_tokens": prompt_tokens, "sampled_tokens": sampled_tokens}
            self._group.count(run_id, counted)
        data = {
            "rollout_id": call.rollout_id,
            "attempt": call.attempt,
            "ordinal": call.ordinal,
            "kind": call.kind,
            "thread": call.thread,
            "prompt_tokens": prompt_tokens,
            "sampled_tokens": sampled_tokens,
            "delivered": call.delivered,
        }
        return self.event(at, "call", run_id, call.id, data)

    def delivered(self, at: float, call_id: str) -> int:
        rollout_id = self._calls.delivered(self._group, call_id)
        return self.event(at, "delivered", self._run_of(rollout_id), call_id, {"rollout_id": rollout_id})

    def samples(self, at: float, run_id: str, step: int, samples: Sequence[Sample], breaks: Sequence[Break]) -> int:
        """Replaces what earlier puts stored for these rollouts: a step that is done again after a crash counts once."""
        rollouts = sorted({*(sample.rollout_id for sample in samples), *(item.rollout_id for item in breaks)})
        for rollout_id in rollouts:
            self._execute("DELETE FROM samples WHERE rollout_id = ?", (rollout_id,))
            self._execute("DELETE FROM breaks WHERE rollout_id = ?", (rollout_id,))
            self._execute("DELETE FROM token_stats WHERE rollout_id = ? AND step <> ?", (rollout_id, step))
        indices = dict.fromkeys(rollouts, 0)
        for sample in samples:
            self._execute(
                "INSERT INTO samples (rollout_id, sample_index, run_id, step, ids, mask, logprobs, versions, segments,"
                " masked) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (sample.rollout_id, indices[sample.rollout_id], run_id, step, *rows.sample_row(sample)),
            )
            indices[sample.rollout_id] += 1
        for item in breaks:
            self._execute(
                "INSERT INTO breaks (rollout_id, run_id, step, cause, body) VALUES (?, ?, ?, ?, ?)",
                (item.rollout_id, run_id, step, str(item.cause), rows.break_body(item)),
            )
        data = {"step": step, "rollout_ids": rollouts, "samples": len(samples), "breaks": len(breaks)}
        return self.event(at, "samples", run_id, str(step), data)

    def token_stats(
        self, at: float, run_id: str, step: int, rollout_id: str, sample_index: int, stats: Mapping[str, Floats]
    ) -> int:
        self._execute("DELETE FROM token_stats WHERE rollout_id = ? AND sample_index = ?", (rollout_id, sample_index))
        for name, numbers in stats.items():
            self._execute(
                "INSERT INTO token_stats VALUES (?, ?, ?, ?, ?, ?)",
                (rollout_id, sample_index, name, run_id, step, enc.pack_floats(enc.as_floats(numbers, name))),
            )
        data = {"step": step, "sample_index": sample_index, "names": list(stats)}
        return self.event(at, "token_stats", run_id, rollout_id, data)

    def step(self, at: float, step: Step) -> int:
        self._execute("INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows.step_row(step))
        data = {"step": step.index, "version": step.version, "rollouts": len(step.rollout_ids), "skipped": step.skipped}
        return self.event(at, "step", step.run_id, str(step.index), data)

    def _run_of(self, rollout_id: str) -> str:
        """The rollout's run, empty where the rollout is not stored (yet)."""
        run_id = self._runs.get(rollout_id)
        if run_id is None:
            row = self._connection.execute("SELECT run_id FROM rollouts WHERE id = ?", (rollout_id,)).fetchone()
            if row is None:
                return ""
            run_id = str(row[0])
            self._runs.put(rollout_id, run_id, _ENTRY_BYTES)
        return run_id

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        self._group.write()
        return self._connection.execute(sql, values)

    def _one(self, sql: str, values: Sequence[Any]) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._execute(sql, values).fetchone()
        return row


def is_dead_disk(error: Exception) -> bool:
    """Whether the file cannot be written any more, whatever the record."""
    if isinstance(error, sqlite3.OperationalError | sqlite3.InternalError):
        return True
    return type(error) is sqlite3.DatabaseError  # a corrupt file; its subclasses speak of bad values


def _bad(error: Exception) -> BadRecordError:
    wrapped = BadRecordError(f"A record cannot be stored as it is ({type(error).__name__}: {error}). It was left out.")
    wrapped.__cause__ = error
    return wrapped
