"""When the models of some rollouts worked, and when the run was updating: what the timeline draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_lab.notebook.columns import Columns
from lightning_lab.notebook.requests import Reply
from lightning_lab.store import Store

MAX_ROLLOUTS = 200
_MAX_CALLS = 8_000  # 28 bytes each: one message
_MAX_STEPS = 2_000


def timeline_reply(store: Store, run_id: str, rollout_ids: Sequence[str]) -> Reply:
    """Calls as columns; ``rollout``: place in ``rollout_ids``. Of a long run the latest steps' updates.

    Columns (Unix seconds): ``arrived`` at the gateway, ``started`` to generate (held until then), ``finished``.
    """
    asked = list(rollout_ids[:MAX_ROLLOUTS])
    times = store.call_times(asked)
    calls = [(place, *call) for place, id in enumerate(asked) for call in times[id]][:_MAX_CALLS]
    columns = Columns()
    columns.numbers("rollout", "i32", [call[0] for call in calls])
    for index, name in enumerate(("arrived", "started", "finished"), start=1):
        columns.numbers(name, "f64", [call[index] for call in calls])
    header: dict[str, Any] = {
        "rows": len(calls),
        "columns": columns.described,
        "updates": [
            [step.index, step.started_at + step.metrics.get("seconds_collect", 0.0), step.finished_at]
            for step in store.steps(run_id)[-_MAX_STEPS:]
        ],
    }
    return Reply(header, columns.buffers)
