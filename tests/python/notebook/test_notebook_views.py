"""Saved views: bounded, legible without style or script, and untrusted text stays text."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import orjson
import pytest
from PIL import Image

from lightning_lab.notebook.frames import Snapshot
from lightning_lab.notebook.plain import json_value
from lightning_lab.notebook.rows import RolloutRow
from lightning_lab.notebook.sparkline import sparkline_png
from lightning_lab.notebook.views import MAX_VIEW_BYTES, MIME_TYPE, rollout_bundle, run_bundle

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x00\x1b[31m\u202e\ud800 & \"'"


def row(i: int, task: str = "1 + 1") -> RolloutRow:
    return RolloutRow(
        row=i, id=f"r-{i}", group="g", task=task, harness="solver", mode="train", state="succeeded",
        outcome="completed", step=i // 8, version=1, reward=1.0, advantage=0.1, weight=0.2, calls=2, tokens=30,
        created_at=1.0, started_at=2.0, finished_at=3.0,
    )  # fmt: skip


def snapshot(steps: int = 3, reason: str = "") -> Snapshot:
    run = {"id": "run-1", "kind": "fit", "state": "running", "reason": reason, "steps_total": 100}
    return Snapshot(
        lab="lab", lab_state="open", run=run, phase={"name": "collecting"},
        counters={"total": 24, "running": 2, "succeeded": 22},
        reward={"now": 0.5, "best": 0.75, "held_out": [{"step": 2, "value": 0.6, "n": 256}]},
        steps=[{"index": i, "reward": i / max(1, steps), "entropy": 0.1, "skipped": ""} for i in range(steps)],
    )  # fmt: skip


def detail(text: str, calls: int = 2) -> dict[str, Any]:
    message = {"role": "user", "content": text, "reasoning": "", "tool_calls": [], "tool_call_id": "", "name": ""}
    reply = {**message, "role": "assistant", "tool_calls": [{"id": "t", "name": "calc", "arguments": text}]}
    call = {"messages": [message], "reply": reply, "sampled_tokens": 5, "finish_reason": "stop"}
    rollout = {
        "id": "r-1", "state": "succeeded", "outcome": "completed", "reward": 1.0, "advantage": None, "weight": None,
        "step": 3, "output": text, "error": "", "stdout": text, "stderr": "", "verdict": text,
    }  # fmt: skip
    return {"v": 1, "rollout": rollout, "calls": [dict(call) for _ in range(calls)], "samples": [], "breaks": []}


def size(bundle: dict[str, Any]) -> int:
    return len(orjson.dumps(bundle))


def test_a_run_shows_its_numbers_in_every_form() -> None:
    bundle = run_bundle(snapshot(), [row(i) for i in range(20)], open_panel=True, note="pip install lightning-lab")
    view = bundle[MIME_TYPE]
    assert (view["view"], view["open_panel"], view["snapshot"]["counters"]["total"]) == ("run", True, 24)
    assert view["snapshot"]["rollouts"]["rows"] == 20
    ids = next(column for column in view["snapshot"]["rollouts"]["columns"] if column["name"] == "id")
    assert ids["values"][-1] == "r-19"
    for words in ("run-1", "step 3 of 100", "collecting"):
        assert words in bundle["text/html"] and words in bundle["text/plain"]
    assert "pip install lightning-lab" in bundle["text/html"]
    assert "held-out 0.6 after step 2" in bundle["text/plain"]


def test_html_needs_no_style_script_or_svg() -> None:
    html = run_bundle(snapshot(), [row(0)])["text/html"] + rollout_bundle(snapshot(), detail("hi"))["text/html"]
    assert not re.search(r"<(script|style|svg)|style=|class=|\son\w+=", html)
    assert "<table>" in html and '<img alt="reward per step"' in html


def test_long_runs_stay_within_the_limit_and_keep_ends() -> None:
    bundle = run_bundle(snapshot(steps=20_000), [row(i, "x" * 120) for i in range(20_000)])
    assert size(bundle) <= MAX_VIEW_BYTES
    saved = bundle[MIME_TYPE]["snapshot"]
    assert (saved["steps"]["rows"][0]["index"], saved["steps"]["rows"][-1]["index"]) == (0, 19_999)
    assert 100 < saved["rollouts"]["rows"] < 20_000
    assert saved["rollouts"]["columns"][0]["values"][-1] == 19_999


@pytest.mark.parametrize("text", ["x" * 1_000_000, HOSTILE * 20_000, "&" * 300_000, "\x00" * 300_000])
def test_huge_rollouts_stay_within_the_limit_and_say_what_is_left_out(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    bundle = rollout_bundle(snapshot(), detail(text, calls=40))
    assert size(bundle) <= MAX_VIEW_BYTES
    assert bundle[MIME_TYPE]["detail"]["cut"]
    assert "Left out here" in bundle["text/html"]


def test_small_rollouts_are_whole() -> None:
    bundle = rollout_bundle(snapshot(), detail("what is 1 + 1?"))
    assert bundle[MIME_TYPE]["detail"] == detail("what is 1 + 1?")
    assert "cut" not in bundle[MIME_TYPE]["detail"]


def test_untrusted_text_stays_text() -> None:
    html = rollout_bundle(snapshot(), json_value(detail(HOSTILE)))["text/html"]
    hostile = json_value(HOSTILE)
    html += run_bundle(snapshot(reason=hostile), [row(0, hostile)], note=HOSTILE)["text/html"]
    tags = set(re.findall(r"<(/?\w+)", html))
    assert tags <= {
        "p", "/p", "b", "/b", "i", "/i", "pre", "/pre", "br", "img", "table", "/table", "thead", "/thead", "tbody",
        "/tbody", "tr", "/tr", "th", "/th", "td", "/td",
    }  # fmt: skip
    assert all(tag.startswith('<img alt="') for tag in re.findall(r"<img[^>]*>", html))
    assert not re.search("[\x00\x1b\u202e\ud800]", html)
    assert "‹U+202E›" in html and "␀" in html


@pytest.mark.parametrize("values", [[], [0.5], [float("nan")], [1.0, 1.0], [0.0, float("nan"), 1.0, float("inf")]])
def test_the_sparkline_draws_anything(values: list[float]) -> None:
    image = Image.open(io.BytesIO(sparkline_png(values)))
    image.load()
    assert image.width > image.height


def test_the_picture_in_the_html_is_a_png() -> None:
    data = re.search(r"base64,([^\"]+)", run_bundle(snapshot(), [])["text/html"])
    assert data and base64.b64decode(data.group(1)).startswith(b"\x89PNG")
