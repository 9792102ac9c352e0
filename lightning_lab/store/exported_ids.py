"""The token ids of an exported run, and texts cut out of them: what says a secret is taken out, all lengths stay.

A call keeps the ids that are new in it, and a secret may begin in what an earlier call said. So secrets are looked for
in whole conversations, and what is found is taken out of every call that stores a part of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_lab.records import Mask
from lightning_lab.store import encoding as enc
from lightning_lab.store.hidden_ids import Decode, hidden, without
from lightning_lab.store.rebuild import RebuiltCall, rebuild_calls
from lightning_lab.store.redaction import Redaction


class IdCopier:
    """Copies ids from the attached database ``source``, whose rollouts ``main`` names."""

    def __init__(self, connection: sqlite3.Connection, redaction: Redaction, decode: Decode | None) -> None:
        self._connection = connection
        self._redaction = redaction
        self._decode = decode
        self._secrets: dict[int, frozenset[str]] = {}

    def copy(self) -> None:
        """The ids of all calls and samples, and the breaks."""
        for (rollout_id,) in self._connection.execute("SELECT id FROM main.rollouts").fetchall():
            calls = rebuild_calls(self._connection, rollout_id, None, schema="source")
            self._copy_calls(calls)
            by_id = {call.row["id"]: call for call in calls}
            self._copy_samples(rollout_id, by_id)
            self._copy_breaks(rollout_id, by_id)

    def _copy_calls(self, calls: Sequence[RebuiltCall]) -> None:
        masks = self._masks(calls)
        for call in calls:
            row, mask, read = call.row, masks[call.row["n"]], len(call.prompt)
            prompt = without(call.prompt, mask[:read])[row["base_length"] :]
            sampled = without(call.sampled, mask[read:])
            new = {"call": row["n"], "prompt": enc.pack_ids(prompt), "sampled": enc.pack_ids(sampled)}
            self._insert("call_tokens", {**new, "logprobs": row["logprobs"], "versions": row["versions"]})

    def _masks(self, calls: Sequence[RebuiltCall]) -> dict[int, Mask]:
        """Which ids are hidden, by row number. Only the last call of a conversation is looked at: it has all ids."""
        length = {call.row["n"]: len(call.ids) for call in calls}
        continued = {base for call in calls if (base := call.row["base"]) and call.row["base_length"] == length[base]}
        masks = {
            call.row["n"]: np.zeros(len(call.ids), np.bool_)
            if call.row["n"] in continued
            else hidden(call.ids, self._said(call), self._redaction, self._decode)
            for call in calls
        }
        for call in reversed(calls):
            base, shared = call.row["base"], call.row["base_length"]
            if base is not None:
                masks[base][:shared] |= masks[call.row["n"]][:shared]
        return masks

    def _copy_samples(self, rollout_id: str, calls: Mapping[str, RebuiltCall]) -> None:
        for row in self._rows("samples", rollout_id):
            made_of = [call_id for call_id, _, _ in enc.load_json(row["segments"])]
            ids = enc.unpack_ids(row["ids"])
            mask = hidden(ids, self._said_by(calls, made_of), self._redaction, self._decode)
            self._insert("samples", {**row, "ids": enc.pack_ids(without(ids, mask))})

    def _copy_breaks(self, rollout_id: str, calls: Mapping[str, RebuiltCall]) -> None:
        for row in self._rows("breaks", rollout_id):
            body = enc.load_json(row["body"])
            secrets = self._said_by(calls, (body["call_id"], body["previous_call_id"]))
            sides = {side: self._redaction.window(body[side], secrets) for side in ("before", "after")}
            self._insert("breaks", {**row, "body": enc.dump_json({**body, **sides})})

    def _rows(self, table: str, rollout_id: str) -> list[dict[str, Any]]:
        cursor = self._connection.execute(f"SELECT * FROM source.{table} WHERE rollout_id = ?", (rollout_id,))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]

    def _insert(self, table: str, row: Mapping[str, Any]) -> None:
        marks = ", ".join("?" * len(row))
        self._connection.execute(f"INSERT INTO main.{table} VALUES ({marks})", tuple(row.values()))

    def _said_by(self, calls: Mapping[str, RebuiltCall], ids: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*(self._said(calls[id]) for id in ids if id in calls))

    def _said(self, call: RebuiltCall) -> frozenset[str]:
        """Secrets in what the call read and said."""
        return frozenset().union(
            *map(self._in_content, (*call.messages.tolist(), call.row["tools"], call.row["reply"]))
        )

    def _in_content(self, ref: int) -> Iterable[str]:
        if ref not in self._secrets:
            row: Any = self._connection.execute("SELECT body FROM source.contents WHERE id = ?", (ref,)).fetchone()
            self._secrets[ref] = frozenset(self._redaction.secrets(enc.load_json(row[0])))
        return self._secrets[ref]
