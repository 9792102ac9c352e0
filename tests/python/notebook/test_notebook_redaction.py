"""Secrets in prompts are hidden wherever a rollout is shown or exported; the records keep what was said."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
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


@pytest.mark.parametrize("gateway", ["thread", "process"])
async def test_what_was_said_is_purged_after_its_time(open_lab: OpenLab, gateway: str) -> None:
    lab = open_lab(gateway=gateway)
    rollout = await lab.run(asker, PROMPT)

    def stored() -> bytes:
        return b"".join(path.read_bytes() for path in lab.path.rglob("*") if path.is_file())

    assert lab.purge(older_than=timedelta(days=1)) == 0
    assert len(rollout.calls()) == 1
    assert KEY.encode() in stored()
    assert lab.purge(older_than=timedelta()) == 1
    assert KEY.encode() not in stored()
    assert (rollout.calls(), rollout.state) == ([], "succeeded")
    assert rollout.bundle()
    again = await lab.run(asker, PROMPT)
    assert len(again.calls()) == 1


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
