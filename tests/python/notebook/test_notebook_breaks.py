"""Why calls were not merged, as a person sees it: in a frame, on a rollout, and on the Rollout page."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from notebook_standin import says_yes, tasks

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.notebook.cuts import cuts_of
from lightning_lab.notebook.detail import rollout_detail
from lightning_lab.records import Task

OpenLab = Callable[..., Lab]


@ll.harness
def editor(task: Task) -> str:
    """Three calls: the second tells the model it said something else, the third goes on from there."""

    def ask(messages: list[dict[str, str]]) -> str:
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            data=json.dumps({"model": "any", "messages": messages}).encode(),
            headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            return str(json.load(response)["choices"][0]["message"]["content"])

    messages = [{"role": "user", "content": task.prompt}]
    ask(messages)
    messages += [{"role": "assistant", "content": "perhaps"}, {"role": "user", "content": "Sure?"}]
    messages += [{"role": "assistant", "content": ask(messages)}, {"role": "user", "content": "Really?"}]
    return ask(messages)


async def test_breaks_of_a_single_rollout_of_a_run_and_of_its_file(open_lab: OpenLab, tmp_path: Path) -> None:
    lab = open_lab()
    assert lab.breaks().empty and "tokens_reread" in lab.breaks().columns

    rollout = await lab.run(editor, tasks(1)[0], grader=says_yes)
    edited = rollout.breaks()[0]
    assert (edited.cause, edited.call_id) == ("edited", rollout.call(1).id)
    assert edited.before.endswith(("yes", "no")) and edited.after.endswith("<assistant>p")
    assert "changed or removed" in ll.explain(edited) and rollout.samples()
    (shown, *_) = rollout_detail(cuts_of(lab.store, rollout.id, lab.decode))["breaks"]
    assert shown["explain"] == ll.explain(edited, {rollout.call(0).id: 0, rollout.call(1).id: 1})
    assert f"From token {edited.index} on, call 1 does not continue call 0: " in shown["explain"]

    run = ll.Trainer(lab, editor, tasks(), says_yes, n=2, groups=2).fit(steps=1)
    await run
    frame = run.breaks()
    assert list(frame.columns) == ["cause", "harness", "count", "tokens_reread", "explanation"]
    line = frame[frame["cause"] == "edited"].iloc[0]
    assert line["harness"] == "editor" and line["count"] == 4
    prompts = [len(run.rollout(name).call(1).prompt_ids) for name in run.rollouts().index]
    assert 0 < line["tokens_reread"] <= sum(prompts)
    whole = lab.breaks()
    assert whole["count"].sum() == frame["count"].sum() + len(rollout.breaks())
    file = run.export(tmp_path / "run.llab")
    lab.close()
    assert ll.load(file).breaks().equals(frame), "what was stored needs neither kernel nor policy"
    assert lab.breaks()["count"].sum() == whole["count"].sum()


def test_an_unknown_rollout_has_no_detail(open_lab: OpenLab) -> None:
    with pytest.raises(LookupError):
        cuts_of(open_lab().store, "r-none")
