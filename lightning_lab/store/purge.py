"""Retention: what rollouts said is forgotten, what they were worth is kept.

A purged rollout keeps its place, state, outcome, reward, weight and counts. Its task's words, its calls, samples,
breaks and outputs go, and with them every message that no other rollout holds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_lab.records import TERMINAL_STATES, Task
from lightning_lab.store import encoding as enc
from lightning_lab.store.schema import connect

_CHOSEN = f"""
SELECT rollouts.n, rollouts.id, rollouts.task FROM rollouts LEFT JOIN runs ON runs.id = run_id
WHERE rollouts.state IN ({", ".join(f"'{state}'" for state in sorted(TERMINAL_STATES))})
AND coalesce(rollouts.finished_at, rollouts.created_at) < ?
AND NOT (coalesce(runs.kind, '') = 'fit' AND runs.state = 'running')
AND (EXISTS (SELECT 1 FROM calls WHERE rollout_id = rollouts.id)
  OR EXISTS (SELECT 1 FROM rollout_texts WHERE rollout = rollouts.n)
  OR rollouts.task NOT IN (SELECT id FROM contents WHERE kind = 'task' AND json_extract(body, '$.prompt') = ''))
"""
"""A run that trains still needs its rollouts."""
_OF = "rollout_id IN (SELECT id FROM temp.purged)"


def purge(connection: sqlite3.Connection, before: float, task: Callable[[Task], int]) -> int:
    """Forget the rollouts that ended before a time (Unix seconds). Returns how many.

    Inside the writer's transaction; ``task`` stores a task without words and gives its content id.
    """
    chosen = connection.execute(_CHOSEN, (before,)).fetchall()
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS purged (n INTEGER PRIMARY KEY, id TEXT UNIQUE)")
    connection.execute("DELETE FROM temp.purged")
    connection.executemany("INSERT INTO temp.purged VALUES (?, ?)", [row[:2] for row in chosen])
    for ref in {row[2] for row in chosen}:
        said = enc.load_json(_body(connection, ref))
        wordless = task(Task(id=said["id"], prompt="", source=said.get("source", "")))
        sql = "UPDATE rollouts SET task = ? WHERE task = ? AND n IN (SELECT n FROM temp.purged)"
        connection.execute(sql, (wordless, ref))
    connection.execute(f"DELETE FROM call_tokens WHERE call IN (SELECT n FROM calls WHERE {_OF})")
    for table in ("calls", "samples", "breaks", "token_stats"):
        connection.execute(f"DELETE FROM {table} WHERE {_OF}")
    connection.execute("DELETE FROM rollout_texts WHERE rollout IN (SELECT n FROM temp.purged)")
    told = "kind = 'call_error' AND subject IN (SELECT id FROM temp.purged)"
    connection.execute(f"UPDATE events SET data = json_remove(data, '$.message') WHERE {told}")
    _drop_contents(connection)
    return len(chosen)


def wipe_log(path: Path) -> None:
    """Empty the write-ahead log: it holds what was written before it was purged. Waits for readers."""
    connection = connect(path, "mode=rw")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.close()


def _drop_contents(connection: sqlite3.Connection) -> None:
    """Those that nobody refers to any more."""
    used: set[int] = set()
    for column in ("tools", "request", "reply"):
        used.update(row[0] for row in connection.execute(f"SELECT DISTINCT {column} FROM calls"))
    for column in ("task", "harness"):
        used.update(row[0] for row in connection.execute(f"SELECT DISTINCT {column} FROM rollouts"))
    for (blob,) in connection.execute("SELECT messages FROM calls"):
        used.update(enc.unpack_refs(blob).tolist())
    stored = [row[0] for row in connection.execute("SELECT id FROM contents")]
    connection.executemany("DELETE FROM contents WHERE id = ?", [(ref,) for ref in stored if ref not in used])


def _body(connection: sqlite3.Connection, ref: int) -> Any:
    return connection.execute("SELECT body FROM contents WHERE id = ?", (ref,)).fetchone()[0]
