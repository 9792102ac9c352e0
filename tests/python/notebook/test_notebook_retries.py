"""A rollout that was lost while it trained: made again, and nothing of the lost attempt is in the batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from notebook_standin import asker

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.notebook.cuts import cuts_of
from lightning_lab.notebook.detail import rollout_detail

ask = asker.function


@ll.harness
def dies_once(task: Any) -> str:
    """The first of all attempts asks, and takes its supervisor with it."""
    said = str(ask(task))
    try:
        (Path(task.fields["folder"]) / "died").touch(exist_ok=False)
    except FileExistsError:
        return said
    os.kill(os.getppid(), signal.SIGKILL)
    return signal.pause() or said


@ll.grader
def says_yes(task: Any, result: Any) -> float:
    return float(result.output == "yes")


async def test_an_attempt_that_was_lost_is_made_again_and_trains_nothing(
    open_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = open_lab()
    tasks = ll.tasks.from_rows([{"prompt": "yes or no?", "answer": "", "folder": str(tmp_path)}])
    run = ll.Trainer(lab, dies_once, tasks, says_yes, n=3, groups=1, retry_wait_s=0.01).fit(steps=1)
    await run
    (again,) = [rollout for rollout in lab.store.rollouts(run.id) if rollout.attempt == 2]
    assert again.outcome == "completed" and again.reward is not None
    first, second = lab.store.calls(again.id)
    assert (first.attempt, second.attempt) == (1, 2)
    trained = [part.call_id for sample in lab.store.samples(again.id) for part in sample.segments]
    assert trained == [second.id]
    (step,) = lab.store.steps(run.id)
    assert (step.metrics["retries"], step.metrics["infrastructure"], step.metrics["rollouts"]) == (1, 0, 3)
    (earlier,) = rollout_detail(cuts_of(lab.store, again.id))["attempts"]
    assert (earlier["attempt"], earlier["outcome"]) == (1, "lost") and "supervisor" in earlier["error"]
    assert run.rollouts().attempt.to_dict()[again.id] == 2
    (problem,) = [one for one in run.snapshot().problems if one["kind"] == "retried"]
    assert (problem["rollouts"], problem["title"]) == ([again.id], "Tried again: lost")
