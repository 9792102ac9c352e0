"""The tables of a store and how its file is opened.

``events`` is the append-only log; every other table is a projection that is written in the same transaction.
Rows that change (``rollouts``, ``calls``) are small; their large, final parts lie in tables of their own
(``rollout_texts``, ``call_tokens``), because SQLite rewrites a whole row to change one column.
There are no foreign keys between rooms' records: the gateway stores calls of rollouts by id, and the order in which
rooms store is theirs. Needs SQLite ≥ 3.31.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from lightning_lab.records import SCHEMA_VERSION
from lightning_lab.store.errors import NotARunError, SchemaVersionError, StoreError

Durability = Literal["normal", "fsync"]

APPLICATION_ID = 0x4C4C4142
"""``LLAB``, in the file header."""
_MAGIC = b"SQLite format 3\0"
_WAL_FORMAT = 2
_BUSY_TIMEOUT_S = 30.0
_CACHED_STATEMENTS = 512
_WAL_SIZE_LIMIT = 64 * 1024 * 1024

TABLES = """
CREATE TABLE events (
  seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, run_id TEXT NOT NULL, subject TEXT NOT NULL,
  data TEXT NOT NULL
);
CREATE INDEX events_by_run ON events (run_id, kind);

-- Immutable JSON values, stored once: messages, tool lists, request parameters, tasks, harnesses.
CREATE TABLE contents (
  id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, kind TEXT NOT NULL, body TEXT NOT NULL
);

CREATE TABLE runs (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL,
  finished_at REAL, reason TEXT NOT NULL, settings TEXT NOT NULL
);

-- Maintained with every change, so that asking is one look-up however large the run is.
CREATE TABLE run_counts (
  run_id TEXT PRIMARY KEY, queuing INTEGER NOT NULL DEFAULT 0, running INTEGER NOT NULL DEFAULT 0,
  succeeded INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, cancelled INTEGER NOT NULL DEFAULT 0,
  infrastructure INTEGER NOT NULL DEFAULT 0, calls INTEGER NOT NULL DEFAULT 0,
  prompt_tokens INTEGER NOT NULL DEFAULT 0, sampled_tokens INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE rollouts (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, run_id TEXT NOT NULL, position INTEGER NOT NULL,
  group_id TEXT NOT NULL, mode TEXT NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL, outcome TEXT,
  reward REAL, task INTEGER NOT NULL, harness INTEGER NOT NULL, exit_code INTEGER, created_at REAL NOT NULL,
  started_at REAL, agent_started_at REAL, finished_at REAL, step INTEGER, advantage REAL, weight REAL
);
CREATE UNIQUE INDEX rollouts_by_run ON rollouts (run_id, position);
CREATE INDEX rollouts_by_state ON rollouts (run_id, state);
CREATE INDEX rollouts_by_group ON rollouts (group_id);
CREATE INDEX rollouts_by_step ON rollouts (run_id, step) WHERE step IS NOT NULL;
CREATE TABLE rollout_texts (rollout INTEGER PRIMARY KEY, body TEXT NOT NULL);

-- A call keeps what is new: its prompt is the first base_length ids of the base call's prompt + sampled ids, then
-- call_tokens.prompt; its messages are the first base_messages of the base call's, then `messages` (contents ids).
CREATE TABLE calls (
  n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, rollout_id TEXT NOT NULL, attempt INTEGER NOT NULL,
  ordinal INTEGER NOT NULL, delivered INTEGER NOT NULL, base INTEGER, base_length INTEGER NOT NULL,
  base_messages INTEGER NOT NULL, messages BLOB NOT NULL, tools INTEGER NOT NULL, request INTEGER NOT NULL,
  reply INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, sampled_tokens INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE INDEX calls_by_rollout ON calls (rollout_id, attempt);
CREATE TABLE call_tokens (
  call INTEGER PRIMARY KEY, prompt BLOB NOT NULL, sampled BLOB NOT NULL, logprobs BLOB NOT NULL, versions BLOB NOT NULL
);
CREATE TABLE call_totals (
  rollout_id TEXT PRIMARY KEY, calls INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, sampled_tokens INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE samples (
  n INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL, sample_index INTEGER NOT NULL, run_id TEXT NOT NULL,
  step INTEGER NOT NULL, ids BLOB NOT NULL, mask BLOB NOT NULL, logprobs BLOB NOT NULL, versions BLOB NOT NULL,
  segments TEXT NOT NULL, masked TEXT NOT NULL, UNIQUE (rollout_id, sample_index)
);
CREATE INDEX samples_by_step ON samples (run_id, step);
CREATE TABLE breaks (
  n INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL, run_id TEXT NOT NULL, step INTEGER NOT NULL, cause TEXT NOT NULL,
  body TEXT NOT NULL
);
CREATE INDEX breaks_by_rollout ON breaks (rollout_id);
CREATE INDEX breaks_by_run ON breaks (run_id);
CREATE TABLE token_stats (
  rollout_id TEXT NOT NULL, sample_index INTEGER NOT NULL, name TEXT NOT NULL, run_id TEXT NOT NULL,
  step INTEGER NOT NULL, numbers BLOB NOT NULL, PRIMARY KEY (rollout_id, sample_index, name)
);
CREATE TABLE steps (
  run_id TEXT NOT NULL, step INTEGER NOT NULL, version INTEGER NOT NULL, started_at REAL NOT NULL,
  finished_at REAL NOT NULL, skipped TEXT NOT NULL, metrics TEXT NOT NULL, rollout_ids TEXT NOT NULL,
  PRIMARY KEY (run_id, step)
);

-- Filled in exported files only.
CREATE TABLE manifest (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE vocabulary (id INTEGER PRIMARY KEY, bytes BLOB NOT NULL);
"""


def create_tables(connection: sqlite3.Connection) -> None:
    """All tables in one transaction: after a crash there are all or none."""
    statements = [f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={SCHEMA_VERSION}", TABLES]
    connection.executescript("BEGIN IMMEDIATE;" + ";".join(statements) + "COMMIT;")


def open_writer(path: Path, durability: Durability) -> sqlite3.Connection:
    """The one connection that writes; creates file and tables. Raises `StoreError` by name."""
    if path.exists() and path.stat().st_size:
        _check_magic(path)
    with _opening(path, "mode=rwc", "Check that its folder exists and is writable.") as connection:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            check_identity(connection, path)
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute(f"PRAGMA synchronous={'FULL' if durability == 'fsync' else 'NORMAL'}")
        connection.execute(f"PRAGMA journal_size_limit={_WAL_SIZE_LIMIT}").fetchone()
        connection.execute("PRAGMA secure_delete=ON").fetchone()  # what is purged is overwritten, not only unlinked
        if not connection.execute("PRAGMA user_version").fetchone()[0]:
            create_tables(connection)
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that can only read. Raises `NotARunError`, `SchemaVersionError` or `StoreError`."""
    _check_magic(path)
    with _opening(path, read_parameters(path), "Check its permissions, and that it is whole.") as connection:
        connection.execute("PRAGMA query_only=1")
        check_identity(connection, path)
    return connection


@contextmanager
def _opening(path: Path, parameters: str, advice: str) -> Iterator[sqlite3.Connection]:
    """A connection that stays open only if the block succeeds."""
    connection = None
    try:
        connection = connect(path, parameters)
        yield connection
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"Cannot open the store {path}: {error}. {advice}") from error
        raise


def connect(path: Path, parameters: str) -> sqlite3.Connection:
    """Autocommit connection, usable from any one thread at a time. Views and functions of the file are not trusted."""
    connection = sqlite3.connect(
        uri(path, parameters),
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_CACHED_STATEMENTS,
    )
    connection.execute("PRAGMA trusted_schema=0")
    return connection


def uri(path: Path, parameters: str) -> str:
    return f"{path.absolute().as_uri()}?{parameters}"


def check_identity(connection: sqlite3.Connection, path: Path) -> None:
    """Raises `NotARunError` or `SchemaVersionError` unless this is a store of this version, tables only."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise NotARunError(f"{path} is a database, but not one of Lightning Lab. Nothing was changed.")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise SchemaVersionError(
            f"{path} has schema version {version}, this Lightning Lab reads {SCHEMA_VERSION}. "
            "Open it with the version of lightning-lab that wrote it."
        )
    if connection.execute("SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index')").fetchone()[0]:
        raise NotARunError(f"{path} holds views or triggers, which no run has: it was tampered with.")


def _check_magic(path: Path) -> None:
    header = _header(path)
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise NotARunError(f"{path} is not a database: it was cut short or is something else. Nothing was changed.")


def _header(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(100)
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror}.") from error


def read_parameters(path: Path) -> str:
    """URI parameters for reading this file.

    Exports, and stores on read-only media with no log beside them, cannot have a writer: no locks, no side files.
    """
    logged = _header(path)[18:19] == bytes([_WAL_FORMAT])
    still = not logged or not (Path(f"{path}-wal").exists() or os.access(path.parent, os.W_OK))
    return "mode=ro&immutable=1" if still else "mode=ro"
