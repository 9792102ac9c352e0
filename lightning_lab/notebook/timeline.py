"""When the models of some rollouts worked, and when the run was updating: what the timeline draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_lab.notebook.columns import Columns
from lightning_lab.notebook.requests import Reply
from lightning_lab.records import Event
from lightning_lab.store import Store

MAX_ROLLOUTS = 200
_MAX_CALLS = 8_000  # 28 bytes each: one message
_MAX_STEPS = 2_000


_PAGE = 10_000


class Pauses:
    """When model calls were held, as the log tells; each of its events is read once in this object's life."""

    def __init__(self) -> None:
        self._seq = 0
        self._spans: list[list[float | None]] = []

    def latest(self, store: Store) -> list[list[float | None]]:
        """[from, to] in Unix seconds, at most `_MAX_STEPS`; ``to`` is None while it lasts."""
        page = store.events(after=self._seq, run_id="", kind="admission", limit=_PAGE)
        while page:
            for event in page:
                self._take(event)
            page = store.events(after=self._seq, run_id="", kind="admission", limit=_PAGE)
        return self._spans[-_MAX_STEPS:]

    def _take(self, event: Event) -> None:
        self._seq = event.seq
        lasts = bool(self._spans) and self._spans[-1][1] is None
        if event.data.get("paused") and not lasts:
            self._spans.append([event.at, None])
        elif lasts and not event.data.get("paused"):
            self._spans[-1][1] = event.at


def timeline_reply(store: Store, run_id: str, rollout_ids: Sequence[str], pauses: Pauses) -> Reply:
    """Calls as columns; ``rollout``: place in ``rollout_ids``. Of a long run the latest steps' updates and pauses.

    Columns (Unix seconds): ``arrived`` at the gateway, ``started`` to generate (held until then), ``finished``.
    """
    asked = list(rollout_ids[:MAX_ROLLOUTS])
    times = store.call_times(asked)
    calls = [(place, *call) for place, id in enumerate(asked) for call in times[id]][:_MAX_CALLS]
    columns = Columns()
    columns.numbers("rollout", "i32", [call[0] for call in calls])
    for index, name in enumerate(("arrived", "started", "finished"), start=1):
        columns.numbers(name, "f64", [call[index] for call in calls])
    updates = [
        [step.index, step.started_at + step.metrics.get("seconds_collect", 0.0), step.finished_at]
        for step in store.steps(run_id)[-_MAX_STEPS:]
    ]
    header: dict[str, Any] = {
        "rows": len(calls),
        "columns": columns.described,
        "updates": updates,
        "pauses": pauses.latest(store),
    }
    return Reply(header, columns.buffers)
