"""The rollout that has run longest, and what it waits for: the first thing to look at when a run seems stuck."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lightning_lab.notebook.rows import RolloutRow
from lightning_lab.store import Store


class Running:
    """Keeps the rows that run, so that asking costs little however many there are."""

    def __init__(self) -> None:
        self._rows: dict[str, RolloutRow] = {}
        self._last: tuple[str, int, float | None] = ("", 0, None)

    def put(self, row: RolloutRow) -> None:
        if row.state == "running":
            self._rows[row.id] = row
        else:
            self._rows.pop(row.id, None)

    def oldest(
        self, store: Store, *, generating: Collection[str], waiting: Collection[str]
    ) -> Mapping[str, Any] | None:
        """``waits_for``: ``model``, ``resume`` (its call is held), or ``agent``: its own work, its tools among it.

        ``since``: when it began to wait, as far as finished calls tell, in Unix seconds.
        """
        row = min(self._rows.values(), key=lambda row: row.started_at or row.created_at or 0.0, default=None)
        if row is None:
            return None
        waits_for = "model" if row.id in generating else "resume" if row.id in waiting else "agent"
        since = self._last_call(store, row) or row.started_at
        return {"rollout": row.id, "started_at": row.started_at, "waits_for": waits_for, "since": since}

    def _last_call(self, store: Store, row: RolloutRow) -> float | None:
        if (row.id, row.calls) != self._last[:2]:
            self._last = (row.id, row.calls, store.last_finished(row.id))
        return self._last[2]
