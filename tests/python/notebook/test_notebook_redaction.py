"""Secrets in prompts are hidden wherever a rollout is shown or exported; the records keep what was said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from notebook_standin import asker

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.notebook.errors import HarnessError
from lightning_lab.notebook.panel import handlers
from lightning_lab.notebook.run import StoredRun
from lightning_lab.records import Task

OpenLab = Callable[..., Lab]

KEY = "sk-proj-" + "Zz9" * 12
PROMPT = f"The key is {KEY}, or badge EMP-123456. " + "x" * 200


def shows(text: str) -> bool:
    """Whether any readable part of the key is in the text."""
    return any(KEY[at : at + 9] in text for at in range(len(KEY) - 9))


@ll.harness
def leaky(task: Task) -> str:
    raise ValueError(f"401 for {task.prompt.split()[3]}")


def everything_shown(lab: Lab, rollout: Any) -> str:
    panel = handlers(lab)
    tokens = panel["tokens"]({"id": rollout.id, "sample": 0})
    parts = [
        json.dumps(rollout.bundle()),
        json.dumps(lab.view("run")._repr_mimebundle_()),
        json.dumps(panel["rollout"]({"id": rollout.id})),
        b"".join(map(bytes, tokens.buffers)).decode(errors="replace"),
        lab.rollouts().to_csv(),
        repr(rollout),
        repr(lab.status),
    ]
    return "\n".join(parts)


async def test_nothing_that_is_shown_holds_the_secret(open_lab: OpenLab, tmp_path: Path) -> None:
    lab = open_lab(redact={**ll.SECRETS, "badge": r"EMP-\d{6}"})
    rollout = await lab.run(asker, PROMPT)
    shown = everything_shown(lab, rollout)
    assert not shows(shown)
    assert "EMP-123456" not in shown
    assert "[redacted openai_key]" in shown
    assert "[redacted badge]" in shown
    [call] = rollout.calls()
    assert call.messages[0].content == PROMPT, "the record keeps what was said"
    assert KEY in lab.decode(call.prompt_ids)  # type: ignore[misc]
    assert (rollout.samples()[0].ids >= 0).all()
    path = StoredRun(lab, rollout.record.run_id).export(tmp_path / "run.llab")
    assert KEY.encode() not in path.read_bytes()
    run = ll.load(path)
    assert not shows(str(run.rollout(rollout.id).calls()))
    assert "[redacted badge]" in run.rollout(rollout.id).calls()[0].messages[0].content


async def test_a_traceback_in_a_cell_holds_none(open_lab: OpenLab) -> None:
    lab = open_lab()
    with pytest.raises(HarnessError, match=r"401 for \[redacted openai_key\]") as raised:
        await lab.run(leaky, PROMPT)
    assert not shows(str(raised.value))
    assert not shows(lab.rollouts().to_csv())


async def test_rules_are_the_labs(open_lab: OpenLab) -> None:
    lab = open_lab(redact={})
    rollout = await lab.run(asker, PROMPT)
    assert shows(everything_shown(lab, rollout))
    with pytest.raises(ValueError, match="'bad' is no regular expression"):
        open_lab(redact={"bad": "["})
