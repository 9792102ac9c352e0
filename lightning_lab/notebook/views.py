"""Saved views: what a cell's output keeps, as MIME bundles of at most `MAX_VIEW_BYTES`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_lab.notebook.detail import shortened
from lightning_lab.notebook.frames import Snapshot, plain_bytes, plain_columns
from lightning_lab.notebook.html import headline, reward_line, rollout_html, run_html, verdict_line
from lightning_lab.notebook.plain import json_bytes
from lightning_lab.notebook.rows import RolloutRow
from lightning_lab.notebook.saved_answers import SavedAnswers
from lightning_lab.records import SCHEMA_VERSION

MIME_TYPE = "application/vnd.lightning-lab+json"
MAX_VIEW_BYTES = 200_000
_HTML_SOURCE_BYTES = 25_000  # escaping may make five times as much of it
_ENVELOPE_BYTES = 1_000
_MAX_STEPS = 400

MimeBundle = dict[str, Any]


class View:
    """Something a cell shows: the live page with the extension, tables and text without it."""

    def __init__(self, bundle: MimeBundle) -> None:
        self._bundle = bundle

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> MimeBundle:
        return self._bundle

    def __repr__(self) -> str:
        return str(self._bundle["text/plain"])


def run_bundle(
    snapshot: Snapshot, rows: Sequence[RolloutRow], *, open_panel: bool = False, note: str = ""
) -> MimeBundle:
    """The Run page. Of a long run the newest rollouts and evenly chosen steps are kept; counters stay whole."""
    html = run_html(snapshot, rows, note)
    text = headline(snapshot) + (f"\n{reward_line(snapshot)}" if snapshot.steps else "")
    budget = MAX_VIEW_BYTES - len(json_bytes([html, text])) - _ENVELOPE_BYTES
    view = {"v": SCHEMA_VERSION, "view": "run", "lab": snapshot.lab, "open_panel": open_panel}
    view["snapshot"] = saved_snapshot(snapshot, rows, budget)
    return {MIME_TYPE: view, "text/html": html, "text/plain": text}


def rollout_bundle(
    snapshot: Snapshot, detail: Mapping[str, Any], answers: SavedAnswers = lambda _: [], picture: str = ""
) -> MimeBundle:
    """The Rollout page. Long texts are cut until the whole fits; the room that is left is for ``answers``.

    ``picture``: HTML of the samples, for viewers without the extension.
    """
    html = rollout_html(shortened(detail, _HTML_SOURCE_BYTES), picture)
    rollout = detail["rollout"]
    text = f"rollout {rollout['id']}: {rollout['state']}, {verdict_line(rollout)}"[:2_000]
    view = {"v": SCHEMA_VERSION, "view": "rollout", "lab": snapshot.lab}
    view["snapshot"] = saved_snapshot(snapshot, (), 20_000)
    budget = MAX_VIEW_BYTES - len(json_bytes([html, text, view])) - _ENVELOPE_BYTES
    view["detail"] = shortened(detail, budget * 3 // 5)
    view["answers"] = answers(budget - len(json_bytes(view["detail"])))
    return {MIME_TYPE: view, "text/html": html, "text/plain": text}


def saved_snapshot(snapshot: Snapshot, rows: Sequence[RolloutRow], budget: int) -> dict[str, Any]:
    """The header fields with plain columns, within ``budget`` bytes of JSON."""
    saved = {**snapshot.fields(), "at": snapshot.at}
    steps = _thinned(snapshot.steps, _MAX_STEPS)
    while len(steps) > 1 and len(json_bytes(steps)) > budget // 2:
        steps = _thinned(steps, len(steps) // 2)
    saved["steps"] = {"from": 0, "rows": list(steps)}
    budget -= len(json_bytes(saved))
    kept: list[RolloutRow] = []
    for row in reversed(rows):
        budget -= plain_bytes(row)
        if budget < 0:
            break
        kept.append(row)
    kept.reverse()
    saved["rollouts"] = {"rows": len(kept), "columns": plain_columns(kept)}
    return saved


def _thinned(steps: Sequence[Mapping[str, Any]], most: int) -> Sequence[Mapping[str, Any]]:
    """At most ``most`` steps, evenly chosen, the first and the last among them."""
    if len(steps) <= most:
        return steps
    last = len(steps) - 1
    return [steps[round(i * last / max(1, most - 1))] for i in range(most)]
