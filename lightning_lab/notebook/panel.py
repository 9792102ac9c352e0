"""What the panel may ask the lab to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import lightning_lab
from lightning_lab.notebook.frames import rows_reply
from lightning_lab.notebook.reading import reading_handlers
from lightning_lab.notebook.requests import Handler, Reply, RequestError, check_schema
from lightning_lab.notebook.selection import selection_from
from lightning_lab.notebook.token_text import decoded_by
from lightning_lab.records import SCHEMA_VERSION, Phase

if TYPE_CHECKING:
    from lightning_lab.notebook.lab import Lab

_UPDATING = frozenset({Phase.CLOSING, Phase.DRAINING, Phase.UPDATING, Phase.PUBLISHING})


def handlers(lab: Lab) -> dict[str, Handler]:
    """The request methods of one lab."""
    panel = _Panel(lab)
    text = decoded_by(lambda: lab.on_show.source.decode)
    reading = reading_handlers(
        lambda: lab.on_show.source.store, text, lab.redaction, lambda run: lab.on_show.source.manifest(run)
    )
    return {**reading, "hello": panel.hello, "rows": panel.rows, "action": panel.action, "select": panel.select}


class _Panel:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def hello(self, params: Mapping[str, Any]) -> dict[str, Any]:
        check_schema(params)
        self._lab.extension_said_hello()
        lab_id = None if self._lab.closed else self._lab.id
        return {"schema": SCHEMA_VERSION, "package": lightning_lab.__version__, "lab": lab_id}

    def rows(self, params: Mapping[str, Any]) -> Reply:
        """One message of the rollout table, from a place on: a panel that was just opened does not wait for its turn.

        Empty when another run is on show meanwhile.
        """
        feed = self._lab.on_show.feed()
        start = params.get("from")
        if feed is None or feed.run_id != params.get("run") or not isinstance(start, int) or start < 0:
            return rows_reply((), 0)
        return rows_reply(feed.table.rows, start)

    def select(self, params: Mapping[str, Any]) -> dict[str, Any]:
        self._lab.selection = selection_from(params)
        return {}

    def action(self, params: Mapping[str, Any]) -> dict[str, bool]:
        if self._lab.closed:
            raise RequestError("The lab is closed.", "Run the cell with ll.Lab(…) again.")
        actions = {"pause": self._pause, "resume": self._resume, "stop": self._stop, "cancel": self._cancel}
        try:
            act = actions[str(params.get("name"))]
        except KeyError:
            raise RequestError(f"There is no action {params.get('name')!r}.") from None
        act(params)
        return {"done": True}

    def _pause(self, _: Mapping[str, Any]) -> None:
        phase = self._lab.status.phase
        if phase in _UPDATING:
            raise RequestError(f"The run is {phase}: calls are held already.", "Pause when it is collecting again.")
        self._lab.pause()

    def _resume(self, _: Mapping[str, Any]) -> None:
        if not self._lab.status.paused:
            raise RequestError("Nothing is paused.")
        self._lab.resume()

    def _stop(self, _: Mapping[str, Any]) -> None:
        run = self._lab.active_run or self._lab.on_show.attached
        if run is None:
            raise RequestError("No run is training.", "Start one with trainer.fit(steps=…).")
        run.stop()

    def _cancel(self, params: Mapping[str, Any]) -> None:
        rollout_id = params.get("rollout")
        if rollout_id is not None:
            self._lab.cancel_rollout(str(rollout_id))
            return
        run = self._lab.active_run or self._lab.on_show.attached
        if run is None:
            raise RequestError("No run is training.", "Rollouts are cancelled one by one: select one.")
        run.cancel()
