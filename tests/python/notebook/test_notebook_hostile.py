"""Texts that nobody expects, in every field of a run: whatever is shown or exported can be sent and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from notebook_standin import asker

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.notebook.frames import FrameBuilder
from lightning_lab.notebook.panel import handlers
from lightning_lab.notebook.run import StoredRun
from lightning_lab.records import Break, BreakCause, Message, Outcome, RolloutState, Task

OpenLab = Callable[..., Lab]

TEXTS = {
    "half an emoji": "a\ud83d b\udc00",
    "surrogates in the wrong order": "\udc00\ud83d",
    "an emoji in two halves": "\ud83d\ude00",
    "NUL": "a\x00b",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x9b31m\u2028\u2029\ufeff\ufffe",
    "one megabyte on one line": "x" * 1_000_000,
    "a long line of half emojis": "\ud83d" * 100_000,
    "right to left": "\u202e\u2066abc",
}


def sendable(value: Any) -> str:
    """As Jupyter sends it: JSON in UTF-8, by either encoder."""
    text = orjson.dumps(value).decode()
    assert json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode().decode()) == json.loads(text)
    return text


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_hostile_text_can_be_shown_sent_and_exported(open_lab: OpenLab, tmp_path: Path, text: str) -> None:
    lab = open_lab()
    first = await lab.run(asker, "harmless")
    await put_hostile(lab, first, text)
    rollout = StoredRun(lab, first.record.run_id).rollout("r-h")
    bundle = rollout.bundle()
    assert len(sendable(bundle)) <= 260_000
    sendable(lab.view("run")._repr_mimebundle_())
    panel = handlers(lab)
    sendable(panel["rollout"]({"id": "r-h"}))
    tokens = panel["tokens"]({"id": "r-h", "sample": 0})
    sendable(tokens.data)
    feed = lab.on_show.feed()
    assert feed is not None
    feed.refresh()
    frame = FrameBuilder(feed.table).build(lab.on_show.now(), seq=1, key=True)
    sendable(frame.header)
    for shown in (lab.rollouts(), lab.breaks()):
        shown.to_csv(tmp_path / "frame.csv")
        sendable({"text/html": shown._repr_html_(), "text/plain": repr(shown)})
    repr(rollout).encode()
    run = ll.load(StoredRun(lab, first.record.run_id).export(tmp_path / "run.llab"))
    again = run.rollout("r-h")
    said = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # JSON joins two halves
    assert again.record.stdout == said, "the export holds what was said"
    assert again.calls()[0].reply.content == said
    sendable(again.bundle())


async def put_hostile(lab: Lab, first: Any, text: str) -> None:
    record, [call] = first.record, first.calls()
    short = text[:1000]
    hostile = {"output": text, "verdict": short, "error": short, "stdout": text, "stderr": short}
    task = Task(id="t-h", prompt=short, answer=short, fields={"a": [short, {short: short}]})
    store = lab.store
    shown = replace(record, id="r-h", task=task, state=RolloutState.FAILED, outcome=Outcome.AGENT_ERROR)
    store.put_rollout(replace(shown, **hostile)).result()
    message = Message(role="user", content=text, reasoning=short, name=short)
    said = {"id": short, "name": short, "arguments": short}
    reply = Message(role="assistant", content=text, reasoning=short, tool_calls=(said,))
    tool = {"type": "function", "function": {"name": short, "description": short, "parameters": {short: short}}}
    odd = {"model": short, "messages": (message,), "tools": (tool,), "reply": reply, "error": short, "thread": short}
    odd |= {"request_extra": {short: short}, "minted_ids": (short,), "finish_reason": short}
    store.put_call(replace(call, id="c-h", rollout_id="r-h", ordinal=0, **odd)).result()
    [sample] = first.samples()
    where = {"call_id": "c-h", "previous_call_id": "c-h", "index": 0, "before": short, "after": short}
    breaks = [Break(rollout_id="r-h", cause=BreakCause.EDITED, **where)]
    made = replace(sample, rollout_id="r-h", ids=np.array(sample.ids))
    store.put_samples(record.run_id, 0, [made], breaks).result()
    store.put_event("note", record.run_id, "r-h", {"said": short, short: 1}).result()
