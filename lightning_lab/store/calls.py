"""Calls on their way into the tables: of each only what no earlier call of its attempt holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import numpy as np

from lightning_lab.records import Call
from lightning_lab.store import encoding as enc
from lightning_lab.store import rows
from lightning_lab.store.contents import Contents
from lightning_lab.store.errors import UnknownIdError
from lightning_lab.store.group import Group
from lightning_lab.store.lru import LruBytes
from lightning_lab.store.rebuild import rebuild_last
from lightning_lab.store.trails import FEW_LEAVES, Leaf, Trail

TRAIL_BYTES = 128 * 1024 * 1024
"""Memory for the open rollouts' conversations; beyond it they are read back from the file when needed."""
_OPEN_BYTES = 4 * 1024 * 1024
_ENTRY_BYTES = 300


class Calls:
    """What the writer remembers of calls. Used by its thread only."""

    def __init__(self, connection: sqlite3.Connection, contents: Contents) -> None:
        self._connection = connection
        self._contents = contents
        self._trails: LruBytes[tuple[str, int], Trail] = LruBytes(TRAIL_BYTES)
        self._touched: set[tuple[str, int]] = set()
        """Trails that were changed since `begin`."""
        self._open: LruBytes[str, tuple[int, str]] = LruBytes(_OPEN_BYTES)
        """Number and rollout of calls that were not marked delivered yet."""

    def begin(self) -> None:
        """A group is put together."""
        self._touched.clear()

    def forget(self) -> None:
        """What was added since `begin` did not last: it is read back from the file when it is needed."""
        for key in self._touched:
            self._trails.drop(key)
        self._open.clear()

    def forget_all(self) -> None:
        """Calls were deleted."""
        self._trails.clear()
        self._open.clear()

    def end(self, rollout_id: str, attempt: int) -> None:
        """The rollout is over."""
        self._trails.drop((rollout_id, attempt))

    def add(self, group: Group, call: Call, contents: Sequence[int]) -> tuple[int, int]:
        """``contents``: ids of the messages and, last, the reply. Returns prompt and sampled tokens."""
        prompt = enc.as_ids(call.prompt_ids, "prompt_ids")
        sampled = enc.as_ids(call.sampled_ids, "sampled_ids")
        messages = np.array(contents[:-1], np.int64)
        trail = self._trail(group, call.rollout_id, call.attempt)
        base = trail.base(prompt, messages)
        row = {
            "id": call.id,
            "rollout_id": call.rollout_id,
            "attempt": call.attempt,
            "ordinal": call.ordinal,
            "delivered": call.delivered,
            "base": base.leaf.call if base.leaf else None,
            "base_length": base.ids,
            "base_messages": base.messages,
            "messages": enc.pack_refs(messages[base.messages :]),
            "tools": self._contents.one(group, "tools", call.tools),
            "request": self._contents.one(group, "request", rows.request_content(call)),
            "reply": contents[-1],
            "prompt_tokens": len(prompt),
            "sampled_tokens": len(sampled),
            "body": rows.call_body(call),
        }
        tokens = (enc.pack_ids(prompt[base.ids :]), enc.pack_ids(sampled), *rows.token_blobs(call))
        n = group.call(row, tokens)
        trail.add(Leaf(n, np.concatenate([prompt, sampled]), messages), base)
        self._trails.put((call.rollout_id, call.attempt), trail, trail.nbytes)
        self._open.put(call.id, (n, call.rollout_id), _ENTRY_BYTES)
        return len(prompt), len(sampled)

    def delivered(self, group: Group, call_id: str) -> str:
        """The client has the last byte. Returns the rollout's id. Raises `UnknownIdError`."""
        n, rollout_id = self._open.get(call_id) or self._stored(group, call_id)
        self._open.drop(call_id)
        group.delivered(n)
        return rollout_id

    def _trail(self, group: Group, rollout_id: str, attempt: int) -> Trail:
        key = (rollout_id, attempt)
        self._touched.add(key)
        trail = self._trails.get(key)
        if trail is None:
            trail = Trail()
            group.write()
            for call in rebuild_last(self._connection, rollout_id, attempt, FEW_LEAVES):
                trail.add(Leaf(call.row["n"], call.ids, call.messages), trail.base(call.prompt, call.messages))
        return trail

    def _stored(self, group: Group, call_id: str) -> tuple[int, str]:
        group.write()
        row = self._connection.execute("SELECT n, rollout_id FROM calls WHERE id = ?", (call_id,)).fetchone()
        if row is None:
            raise UnknownIdError(f"No call {call_id} is stored, so it cannot be marked delivered.")
        return int(row[0]), str(row[1])
