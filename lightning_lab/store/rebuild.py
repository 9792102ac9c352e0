"""Stored calls, base + new part, back to whole calls. Used by readers, and by the writer after a reopen.

Calls that continue each other to the end are views of one array, so that reading a conversation back costs what is
new in it, not the sum of its prompts; whoever compares two such calls may see that they are the same memory.

Worked example: call 1 has prompt ``[1, 2]`` and sampled ``[3]``; call 2 is stored as base 1, base_length 3, new part
``[5]`` and sampled ``[7]``. The array is ``[1, 2, 3, 5, 7]``, and call 2's prompt its first four ids.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_lab.records import Ids
from lightning_lab.store import encoding as enc
from lightning_lab.store.trails import Refs

_COLUMNS = "calls.*, call_tokens.prompt, call_tokens.sampled, call_tokens.logprobs, call_tokens.versions"
_SELECT = f"""
SELECT {_COLUMNS}
FROM {{schema}}.calls JOIN {{schema}}.call_tokens ON call_tokens.call = calls.n
WHERE calls.rollout_id = :rollout AND (:attempt IS NULL OR calls.attempt = :attempt) ORDER BY calls.n
"""
_SELECT_LAST = f"""
WITH RECURSIVE wanted(n) AS (
  SELECT n FROM (SELECT n FROM calls WHERE rollout_id = :rollout AND attempt = :attempt ORDER BY n DESC LIMIT :count)
  UNION SELECT calls.base FROM calls JOIN wanted USING (n) WHERE calls.base IS NOT NULL
)
SELECT {_COLUMNS}
FROM wanted JOIN calls USING (n) JOIN call_tokens ON call_tokens.call = calls.n ORDER BY calls.n
"""


@dataclass(frozen=True, slots=True, eq=False)
class RebuiltCall:
    """A row with the two lists that are stored relative to its base."""

    row: Mapping[str, Any]
    prompt: Ids
    sampled: Ids
    ids: Ids
    """prompt + sampled."""
    messages: Refs


def rebuild_calls(
    connection: sqlite3.Connection, rollout_id: str, attempt: int | None, *, schema: str = "main"
) -> list[RebuiltCall]:
    """In the order in which they were stored: a base always comes before what builds on it.

    ``schema``: which of the connection's databases.
    """
    wanted = {"rollout": rollout_id, "attempt": attempt}
    return _rebuilt(connection.execute(_SELECT.format(schema=schema), wanted))


def rebuild_last(connection: sqlite3.Connection, rollout_id: str, attempt: int, count: int) -> list[RebuiltCall]:
    """The latest ``count`` calls of an attempt and all that they build on, in the order in which they were stored."""
    wanted = {"rollout": rollout_id, "attempt": attempt, "count": count}
    return _rebuilt(connection.execute(_SELECT_LAST, wanted))


def _rebuilt(cursor: sqlite3.Cursor) -> list[RebuiltCall]:
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
    ids, messages = _ids(rows), _messages(rows)
    rebuilt = []
    for row in rows:
        whole = ids[row["n"]]
        prompt_length = len(whole) - len(row["sampled"]) // enc.ID_BYTES
        rebuilt.append(RebuiltCall(row, whole[:prompt_length], whole[prompt_length:], whole, messages[row["n"]]))
    return rebuilt


def _ids(rows: Sequence[Mapping[str, Any]]) -> dict[int, Ids]:
    """Prompt + sampled ids by row number, read-only."""
    lengths, first = _conversations(rows)
    longest = {head: lengths[n] for n, head in first.items()}  # the last call of a conversation
    arrays = {head: np.empty(length, np.int32) for head, length in longest.items()}
    for row in rows:
        n, base, shared, stop = row["n"], row["base"], row["base_length"], lengths[row["n"]]
        array, sampled = arrays[first[n]], enc.unpack_ids(row["sampled"])
        if shared and first[base] != first[n]:
            array[:shared] = arrays[first[base]][:shared]
        array[shared : stop - len(sampled)] = enc.unpack_ids(row["prompt"])
        array[stop - len(sampled) : stop] = sampled
    for array in arrays.values():
        enc.frozen(array)
    return {n: arrays[head][: lengths[n]] for n, head in first.items()}


def _conversations(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[int, int], dict[int, int]]:
    """By row number: how many ids the call has, and the first call of its conversation.

    In a conversation each call continues the one before it to the end. Raises ValueError for what no writer stored.
    """
    lengths: dict[int, int] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for row in rows:
        n, base, shared = row["n"], row["base"], row["base_length"]
        if not 0 <= shared <= (0 if base is None else lengths[base]):
            raise ValueError(f"call {row['id']} builds on {shared} ids, more than its base has")
        lengths[n] = shared + (len(row["prompt"]) + len(row["sampled"])) // enc.ID_BYTES
        whole = base is not None and shared == lengths[base] and last[first[base]] == base
        first[n] = first[base] if whole else n
        last[first[n]] = n
    return lengths, first


def _messages(rows: Sequence[Mapping[str, Any]]) -> dict[int, Refs]:
    """Content ids of the messages, by row number."""
    messages: dict[int, Refs] = {}
    for row in rows:
        new = enc.unpack_refs(row["messages"])
        if row["base"] is not None:
            new = np.concatenate([messages[row["base"]][: row["base_messages"]], new])
        messages[row["n"]] = new
    return messages
