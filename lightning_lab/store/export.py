"""Exported runs: one read-only SQLite file (``.llab``) with everything of one run, and its manifest inside.

The file is a store like any other, without a log of its own (journal mode DELETE), so that it opens from a read-only
folder without any file appearing beside it. No pickle, no code, no paths. Secrets are taken out on the way: texts and
ids with a secret are never written to the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lightning_lab.records import SCHEMA_VERSION
from lightning_lab.store import encoding as enc
from lightning_lab.store.atomic import replacing
from lightning_lab.store.errors import MissingManifestError, StoreError
from lightning_lab.store.exported_ids import IdCopier
from lightning_lab.store.hidden_ids import Decode
from lightning_lab.store.redaction import COMMON, Redaction
from lightning_lab.store.run_folder import MANIFEST
from lightning_lab.store.schema import connect, create_tables, read_parameters, uri
from lightning_lab.store.spelling import spell
from lightning_lab.store.store import Store

_OF_RUN = "run_id = :run"
_OF_ROLLOUTS = "rollout_id IN (SELECT id FROM main.rollouts)"
_SELECTIONS = {
    "runs": "id = :run",
    "run_counts": _OF_RUN,
    "events": _OF_RUN,
    "rollouts": _OF_RUN,
    "rollout_texts": "rollout IN (SELECT n FROM main.rollouts)",
    "calls": _OF_ROLLOUTS,
    "call_totals": _OF_ROLLOUTS,
    "token_stats": _OF_ROLLOUTS,
    "steps": _OF_RUN,
    "contents": "id IN (SELECT id FROM temp.used)",
}
"""What belongs to a run, in the order in which it can be found out; token ids and breaks are copied by `IdCopier`."""
_SHOWN = {
    "runs": {"reason": "shown_text(reason)", "settings": "shown_json(settings)"},
    "events": {"data": "shown_json(data)"},
    "rollout_texts": {"body": "shown_json(body)"},
    "calls": {"body": "shown_json(body)"},
    "contents": {"body": "shown_json(body)", "hash": "CAST(id AS BLOB)"},
}
"""How columns with texts are copied. The hash of a text would tell whoever guesses it; a copy needs none."""


def export_run(
    store: Store,
    run_id: str,
    target: Path | str,
    *,
    manifest: Mapping[str, Any] | None = None,
    vocabulary: Mapping[int, bytes] | None = None,
    redaction: Redaction = COMMON,
    decode: Decode | None = None,
) -> Path:
    """Write one run of ``store`` to ``target``, while the lab may go on: what was committed at this moment.

    ``manifest``: by default that of the run folder the store lies in. ``vocabulary``: token id → bytes; the ids that
    occur in the run are kept, so that its texts can be shown token by token without a tokenizer; without one,
    ``decode`` spells them. ``redaction``: what is a secret; ``decode``: ids → text, to find the ids that say one.
    Without it, or a vocabulary, the ids of a whole conversation with a secret are left out.
    Returns the path. Raises `UnknownIdError`, or `StoreError` if the target cannot be written; an older file at
    ``target`` is then untouched.
    """
    run = store.run(run_id)
    target = Path(target).absolute()
    described = {**(_folder_manifest(store.path) if manifest is None else manifest)}
    described.update(schema_version=SCHEMA_VERSION, run_id=run.id)
    try:
        with replacing(target) as temporary:
            _write(store.path, run_id, temporary, described, vocabulary or {}, redaction, decode)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"Cannot export run {run_id} to {target}: {error}. Check the folder and the disk.") from error
    return target


def open_run(path: Path | str) -> Store:
    """An exported run, for reading. Nothing is created beside it.

    Raises `NotARunError`, `SchemaVersionError` or `MissingManifestError`.
    """
    store = Store(path, read_only=True)
    try:
        if "run_id" not in store.manifest():
            raise MissingManifestError(
                f"{path} has no manifest: it is a live store or an unfinished export, not a run."
            )
    except BaseException:
        store.close()
        raise
    return store


def _write(
    source: Path,
    run_id: str,
    temporary: Path,
    manifest: Mapping[str, Any],
    vocabulary: Mapping[int, bytes],
    redaction: Redaction,
    decode: Decode | None,
) -> None:
    connection = connect(temporary, "mode=rwc")
    connection.create_function("shown_text", 1, redaction.text, deterministic=True)
    connection.create_function("shown_json", 1, partial(_shown_json, redaction), deterministic=True)
    try:
        connection.execute("PRAGMA journal_mode=MEMORY").fetchone()  # nothing beside the file, not even for a moment
        create_tables(connection)
        connection.execute("ATTACH ? AS source", (uri(source, read_parameters(source)),))
        connection.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
        connection.execute("BEGIN")
        _copy(connection, run_id)
        IdCopier(connection, redaction, decode or _spelled_by(vocabulary)).copy()
        described = redaction.value(manifest).items()
        connection.executemany("INSERT INTO manifest VALUES (?, ?)", [(k, enc.dump_json(v)) for k, v in described])
        words = _words(_token_ids(connection), vocabulary, decode)
        connection.executemany("INSERT INTO vocabulary VALUES (?, ?)", words)
        connection.execute("COMMIT")
    finally:
        connection.close()


def _copy(connection: sqlite3.Connection, run_id: str) -> None:
    for table, selection in _SELECTIONS.items():
        if table == "contents":
            refs = [(ref,) for ref in _content_refs(connection)]
            connection.executemany("INSERT OR IGNORE INTO temp.used VALUES (?)", refs)
        names = [row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")]
        columns = ", ".join(_SHOWN.get(table, {}).get(name, name) for name in names)
        sql = f"INSERT INTO main.{table} SELECT {columns} FROM source.{table} WHERE {selection}"
        connection.execute(sql, {"run": run_id} if ":run" in selection else {})


def _shown_json(redaction: Redaction, text: str) -> str:
    value = enc.load_json(text) if text else None
    shown = redaction.value(value)
    return text if shown == value else enc.dump_json(shown)


def _spelled_by(vocabulary: Mapping[int, bytes]) -> Decode | None:
    if not vocabulary:
        return None
    return lambda ids: b"".join(vocabulary.get(one, b"") for one in ids.tolist()).decode(errors="replace")


def _words(ids: Iterable[int], vocabulary: Mapping[int, bytes], decode: Decode | None) -> list[tuple[int, bytes]]:
    """The run's own vocabulary: as given, else as the decoder spells each id."""
    if vocabulary or decode is None:
        return [(id_, bytes(vocabulary[id_])) for id_ in ids if id_ in vocabulary]
    return [(id_, text.encode(errors="replace")) for id_ in ids if (text := spell(decode, id_))]


def _content_refs(connection: sqlite3.Connection) -> Iterable[int]:
    yield from _column(connection, "SELECT task FROM main.rollouts UNION SELECT harness FROM main.rollouts")
    for column in ("tools", "request", "reply"):
        yield from _column(connection, f"SELECT DISTINCT {column} FROM main.calls")
    for blob in _column(connection, "SELECT messages FROM main.calls"):
        yield from enc.unpack_refs(blob).tolist()


def _token_ids(connection: sqlite3.Connection) -> list[int]:
    """Every id that occurs in the run, ascending."""
    found: set[int] = set()
    for column in ("prompt", "sampled"):
        for blob in _column(connection, f"SELECT {column} FROM main.call_tokens"):
            found.update(np.unique(enc.unpack_ids(blob)).tolist())
    for blob in _column(connection, "SELECT ids FROM main.samples"):
        found.update(np.unique(enc.unpack_ids(blob)).tolist())
    return sorted(found)


def _column(connection: sqlite3.Connection, sql: str) -> Iterable[Any]:
    return (row[0] for row in connection.execute(sql))


def _folder_manifest(store: Path) -> dict[str, Any]:
    path = store.parent / MANIFEST
    if not path.exists():
        return {}
    manifest: dict[str, Any] = enc.load_json(path.read_text("utf-8"))
    return manifest
