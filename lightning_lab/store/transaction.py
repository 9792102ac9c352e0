"""What one put means in tables: the log line and its projections. Runs in the writer thread only."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

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
)
from lightning_lab.store import encoding as enc
from lightning_lab.store import rows
from lightning_lab.store.errors import BadRecordError, TerminalStateError, UnknownIdError
from lightning_lab.store.lru import LruBytes
from lightning_lab.store.rebuild import rebuild_calls
from lightning_lab.store.trails import Base, Leaf, Refs, Trail

TRAIL_BYTES = 128 * 1024 * 1024
"""Memory for the open rollouts' conversations; beyond it they are read back from the file when needed."""

_HASH_BYTES = 20
_INFRASTRUCTURE = frozenset(outcome.value for outcome in INFRASTRUCTURE_OUTCOMES)
_TERMINAL = frozenset(state.value for state in TERMINAL_STATES)


class Transaction:
    """Writes puts into the open transaction and collects their events.

    Memory is changed only through `after`, once the put is in: a put that fails half-way leaves nothing behind.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._trails: LruBytes[tuple[str, int], Trail] = LruBytes(TRAIL_BYTES)
        self._after: list[Callable[[], None]] = []
        self.events: list[Event] = []

    def apply(self, put: Callable[[Transaction], int]) -> int:
        """Run one put, all or nothing. Returns its event's seq; raises what it raised."""
        mark = len(self.events)
        self._after.clear()
        self._execute("SAVEPOINT put")
        try:
            seq = put(self)
        except BaseException:
            del self.events[mark:]
            if self._connection.in_transaction:  # a dead disk has rolled back everything already
                self._execute("ROLLBACK TO put")
                self._execute("RELEASE put")
            raise
        self._execute("RELEASE put")
        for change in self._after:
            change()
        return seq

    def event(self, at: float, kind: str, run_id: str, subject: str, data: Mapping[str, Any]) -> int:
        text = enc.dump_json(data)
        cursor = self._execute(
            "INSERT INTO events (at, kind, run_id, subject, data) VALUES (?, ?, ?, ?, ?)",
            (at, kind, run_id, subject, text),
        )
        seq = int(cursor.lastrowid or 0)
        self.events.append(Event(seq=seq, at=at, kind=kind, run_id=run_id, subject=subject, data=enc.load_json(text)))
        return seq

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
            rollout, self._content("task", rollout.task), self._content("harness", rollout.harness)
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
            self._after.append(lambda: self._trails.drop((rollout.id, rollout.attempt)))
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
        self._count(run_id, changes)

    def call(self, at: float, call: Call) -> int:
        prompt = enc.as_ids(call.prompt_ids, "prompt_ids")
        sampled = enc.as_ids(call.sampled_ids, "sampled_ids")
        messages = np.array([self._content("message", message) for message in call.messages], np.int64)
        trail = self._trail(call.rollout_id, call.attempt)
        base = trail.base(prompt, messages)
        n = self._insert_call(call, base, messages, (len(prompt), len(sampled)))
        self._execute(
            "INSERT INTO call_tokens (call, prompt, sampled, logprobs, versions) VALUES (?, ?, ?, ?, ?)",
            (n, enc.pack_ids(prompt[base.ids :]), enc.pack_ids(sampled), *rows.token_blobs(call)),
        )
        self._remember(trail, call, Leaf(n, np.concatenate([prompt, sampled]), messages), base)
        run_id = self._count_call(call.rollout_id, len(prompt), len(sampled))
        data = {
            "rollout_id": call.rollout_id,
            "attempt": call.attempt,
            "ordinal": call.ordinal,
            "kind": call.kind,
            "thread": call.thread,
            "prompt_tokens": len(prompt),
            "sampled_tokens": len(sampled),
            "delivered": call.delivered,
        }
        return self.event(at, "call", run_id, call.id, data)

    def _insert_call(self, call: Call, base: Base, messages: Refs, sizes: tuple[int, int]) -> int:
        values = {
            "id": call.id,
            "rollout_id": call.rollout_id,
            "attempt": call.attempt,
            "ordinal": call.ordinal,
            "delivered": call.delivered,
            "base": base.leaf.call if base.leaf else None,
            "base_length": base.ids,
            "base_messages": base.messages,
            "messages": enc.pack_refs(messages[base.messages :]),
            "tools": self._content("tools", call.tools),
            "request": self._content("request", rows.request_content(call)),
            "reply": self._content("message", call.reply),
            "prompt_tokens": sizes[0],
            "sampled_tokens": sizes[1],
            "body": rows.call_body(call),
        }
        sql = f"INSERT INTO calls ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})"
        try:
            return int(self._execute(sql, tuple(values.values())).lastrowid or 0)
        except sqlite3.IntegrityError as error:
            raise BadRecordError(
                f"Call {call.id} cannot be stored: {error}. A call is put once; what is stored was not changed."
            ) from error

    def _trail(self, rollout_id: str, attempt: int) -> Trail:
        trail = self._trails.get((rollout_id, attempt))
        if trail is None:
            trail = Trail()
            for call in rebuild_calls(self._connection, rollout_id, attempt):
                trail.add(Leaf(call.row["n"], call.ids, call.messages), trail.base(call.prompt, call.messages))
        return trail

    def _remember(self, trail: Trail, call: Call, leaf: Leaf, base: Base) -> None:
        def change() -> None:
            trail.add(leaf, base)
            self._trails.put((call.rollout_id, call.attempt), trail, trail.nbytes)

        self._after.append(change)

    def _count_call(self, rollout_id: str, prompt_tokens: int, sampled_tokens: int) -> str:
        """Returns the run's id, empty where the rollout is not stored (yet)."""
        self._execute(
            "INSERT INTO call_totals VALUES (?, 1, ?, ?) ON CONFLICT (rollout_id) DO UPDATE SET calls = calls + 1,"
            " prompt_tokens = prompt_tokens + excluded.prompt_tokens,"
            " sampled_tokens = sampled_tokens + excluded.sampled_tokens",
            (rollout_id, prompt_tokens, sampled_tokens),
        )
        run_id = self._run_of(rollout_id)
        if run_id:
            self._count(run_id, {"calls": 1, "prompt_tokens": prompt_tokens, "sampled_tokens": sampled_tokens})
        return run_id

    def delivered(self, at: float, call_id: str) -> int:
        row = self._one("SELECT n, rollout_id FROM calls WHERE id = ?", (call_id,))
        if row is None:
            raise UnknownIdError(f"No call {call_id} is stored, so it cannot be marked delivered.")
        self._execute("UPDATE calls SET delivered = 1 WHERE n = ?", (row[0],))
        return self.event(at, "delivered", self._run_of(row[1]), call_id, {"rollout_id": row[1]})

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

    def _content(self, kind: str, value: Any) -> int:
        """Id of an immutable value, stored now if it is new."""
        body = rows.content_body(value)
        digest = hashlib.blake2b(f"{kind}\0{body}".encode(), digest_size=_HASH_BYTES).digest()
        known = self._one("SELECT id FROM contents WHERE hash = ?", (digest,))
        if known:
            return int(known[0])
        cursor = self._execute("INSERT INTO contents (hash, kind, body) VALUES (?, ?, ?)", (digest, kind, body))
        return int(cursor.lastrowid or 0)

    def _run_of(self, rollout_id: str) -> str:
        row = self._one("SELECT run_id FROM rollouts WHERE id = ?", (rollout_id,))
        return str(row[0]) if row else ""

    def _count(self, run_id: str, changes: Mapping[str, int]) -> None:
        moved = {name: by for name, by in changes.items() if by}
        if moved:
            sets = ", ".join(f"{name} = {name} + ?" for name in moved)
            self._execute(f"UPDATE run_counts SET {sets} WHERE run_id = ?", (*moved.values(), run_id))

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(sql, values)

    def _one(self, sql: str, values: Sequence[Any]) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._connection.execute(sql, values).fetchone()
        return row
