"""HTML that any notebook viewer shows: tables and one picture, legible without style or script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_lab.notebook.frames import Snapshot
from lightning_lab.notebook.rows import RolloutRow
from lightning_lab.notebook.shown import shown
from lightning_lab.notebook.sparkline import sparkline_tag

_ROLLOUTS = 8
_COUNTERS = ("queuing", "running", "succeeded", "failed", "cancelled", "infrastructure", "calls", "in_flight", "held")


def run_html(snapshot: Snapshot, rows: Sequence[RolloutRow], note: str = "") -> str:
    """The Run page as a summary: headline, counters, reward, latest rollouts. ``note`` is plain text."""
    parts = [f"<p><b>Lightning Lab</b> · {shown(headline(snapshot))}</p>"]
    if snapshot.run and snapshot.run.get("reason"):
        parts.append(f"<p><b>{shown(str(snapshot.run['state']))}:</b></p><pre>{shown(snapshot.run['reason'])}</pre>")
    parts.append(_table([name.replace("_", " ") for name in _COUNTERS], [_counter_cells(snapshot)]))
    rewards = [_number(step.get("reward")) for step in snapshot.steps]
    finite = [value for value in rewards if math.isfinite(value)]
    if finite:
        shape = f"picture: {_cell(min(finite))} to {_cell(max(finite))}"
        parts.append(f"<p>{shown(reward_line(snapshot))} ({shape})<br>{sparkline_tag(rewards, 'reward per step')}</p>")
    if rows:
        head = ("rollout", "task", "state", "outcome", "step", "reward", "calls")
        parts.append(_table(head, [_row(row) for row in _latest(rows)]))
    if note:
        parts.append(f"<p><i>{shown(note)}</i></p>")
    return "\n".join(parts)


def rollout_html(detail: Mapping[str, Any], picture: str = "") -> str:
    """The Rollout page as a transcript: task, ``picture`` (HTML), messages, output, the grader's verdict last."""
    rollout = detail["rollout"]
    head = ("rollout", "state", "outcome", "reward", "advantage", "weight", "step")
    parts = [_table(head, [[_cell(rollout["id" if name == "rollout" else name]) for name in head]])]
    parts += [picture] if picture else []
    for call in detail["calls"]:
        parts.extend(_message(message) for message in call["messages"])
        parts.append(_message(call["reply"], f"{call['sampled_tokens']} tokens, {call['finish_reason']}"))
    for title, key in (("output", "output"), ("error", "error"), ("stdout", "stdout"), ("stderr", "stderr")):
        if rollout[key]:
            parts.append(f"<p><b>{title}</b></p><pre>{shown(rollout[key])}</pre>")
    parts.append(f"<p><b>verdict</b> {shown(verdict_line(rollout))}</p>")
    if detail.get("cut"):
        parts.append(f"<p><i>Left out here: {shown(detail['cut'])}.</i></p>")
    return "\n".join(parts)


def _latest(rows: Sequence[RolloutRow]) -> Sequence[RolloutRow]:
    """Those that ended last: the newest of a step are still queued and say nothing."""
    ended = sorted((row for row in rows if row.finished_at), key=lambda row: row.finished_at or 0.0)
    return ended[-_ROLLOUTS:] or rows[-_ROLLOUTS:]


def headline(snapshot: Snapshot) -> str:
    """One line: which run, in what state, how far."""
    run = snapshot.run
    if run is None:
        return f"lab {snapshot.lab} is {snapshot.lab_state}; nothing has run yet"
    parts = [f"run {run['id']}", run["kind"], run["state"]]
    if run["kind"] == "fit":
        done, total = len(snapshot.steps), run.get("steps_total")
        parts.append(f"step {done} of {total}" if total else f"step {done}")
        if run["state"] == "running":
            parts.append(str(snapshot.phase.get("name", "")))
    parts.append(f"{snapshot.counters.get('total', 0):,} rollouts")
    return " · ".join(part for part in parts if part)


def reward_line(snapshot: Snapshot) -> str:
    reward = snapshot.reward
    parts = [f"reward {_cell(reward.get('now'))} now, {_cell(reward.get('best'))} best"]
    held_out = reward.get("held_out") or []
    if held_out:
        parts.append(f"held-out {_cell(held_out[-1]['value'])} after step {held_out[-1]['step']}")
    return "; ".join(parts)


def verdict_line(rollout: Mapping[str, Any]) -> str:
    if rollout["reward"] is None:
        return rollout["verdict"] or "no reward"
    return f"reward {_cell(rollout['reward'])}" + (f": {rollout['verdict']}" if rollout["verdict"] else "")


def _counter_cells(snapshot: Snapshot) -> list[str]:
    return [f"{snapshot.counters.get(name, 0):,}" for name in _COUNTERS]


def _row(row: RolloutRow) -> list[str]:
    values = (row.id, row.task, row.state, row.outcome, row.step, row.reward, row.calls)
    return [_cell(value) for value in values]


def _message(message: Mapping[str, Any], note: str = "") -> str:
    said = [message["reasoning"], message["content"]]
    said += [f"{call.get('name', '')}({call.get('arguments', '')})" for call in message["tool_calls"]]
    body = "\n".join(text for text in said if text)
    title = shown(message["role"]) + (f" · {shown(note)}" if note else "")
    return f"<p><b>{title}</b></p><pre>{shown(body)}</pre>"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th>{shown(title)}</th>" for title in head)
    lines = "".join("<tr>" + "".join(f"<td>{shown(cell, 200)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
