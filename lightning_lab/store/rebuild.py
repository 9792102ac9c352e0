"""Stored calls, base + new part, back to whole calls. Used by readers, and by the writer after a reopen."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_lab.records import Ids
from lightning_lab.store import encoding as enc
from lightning_lab.store.trails import Refs

_SELECT = """
SELECT calls.*, call_tokens.prompt, call_tokens.sampled, call_tokens.logprobs, call_tokens.versions
FROM calls JOIN call_tokens ON call_tokens.call = calls.n
WHERE calls.rollout_id = ? AND (? IS NULL OR calls.attempt = ?) ORDER BY calls.n
"""


@dataclass(frozen=True, slots=True, eq=False)
class RebuiltCall:
    """A row with the two lists that are stored relative to its base."""

    row: Mapping[str, Any]
    prompt: Ids
    messages: Refs
    ids: Ids
    """prompt + sampled."""


def rebuild_calls(connection: sqlite3.Connection, rollout_id: str, attempt: int | None) -> Iterator[RebuiltCall]:
    """In the order in which they were stored: a base always comes before what builds on it."""
    cursor = connection.execute(_SELECT, (rollout_id, attempt, attempt))
    names = [column[0] for column in cursor.description]
    known: dict[int, RebuiltCall] = {}
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        prompt, messages = enc.unpack_ids(row["prompt"]), enc.unpack_refs(row["messages"])
        if row["base"] is not None:
            base = known[row["base"]]
            prompt = np.concatenate([base.ids[: row["base_length"]], prompt])
            messages = np.concatenate([base.messages[: row["base_messages"]], messages])
        ids = np.concatenate([prompt, enc.unpack_ids(row["sampled"])])
        known[row["n"]] = rebuilt = RebuiltCall(row, enc.frozen(prompt), messages, ids)
        yield rebuilt
