"""A rollout that was lost while it trained: made again, and nothing of the lost attempt is in the batch."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from notebook_standin import StandInPolicy, asker

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.notebook.cuts import cuts_of
from lightning_lab.notebook.detail import rollout_detail
from lightning_lab.notebook.panel import handlers
from lightning_lab.notebook.requests import Requests
from lightning_lab.policy.base import Chunk
from lightning_lab.records import Ids, Sampling

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


class SlowToBegin(StandInPolicy):
    """Its first answer comes later than the client waits; the client asks again."""

    async def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        if self._said == 0:
            self._said += 1
            await asyncio.sleep(60)  # the client is gone long before
        async for chunk in super().generate(prompt, sampling, rollout_id=rollout_id):
            yield chunk


@ll.harness(preload=["openai"])
def impatient(task: Any) -> str:
    """Two calls through the released client, which retries by itself."""
    import openai

    client = openai.OpenAI(timeout=2.0, max_retries=2)
    said: list[Any] = [{"role": "user", "content": task.prompt}]
    for _ in range(2):
        reply = client.chat.completions.create(model="any", messages=said).choices[0].message.content
        said += [{"role": "assistant", "content": reply}, {"role": "user", "content": "sure?"}]
    return str(reply)


async def test_a_call_that_the_client_gave_up_and_its_retry_are_shown_as_one_question_asked_twice(
    open_lab: Callable[..., Lab],
) -> None:
    lab = open_lab(SlowToBegin())
    rollout = await lab.run(impatient, ll.tasks.from_rows([{"prompt": "yes or no?", "answer": ""}])[0])
    detail = Requests(handlers(lab)).answer({"id": 1, "method": "rollout", "params": {"id": rollout.id}}).data["result"]
    calls = detail["calls"]
    assert [call["delivered"] for call in calls] == [False, True, True]
    assert [call["kind"] for call in calls] == ["undelivered", "retry", "main"]
    assert len({call["thread"] for call in calls}) == 1, "one conversation"
    assert calls[0]["messages"] and calls[1]["messages"] == [], "the question is shown once"
    trained = {call for sample in detail["samples"] for call in sample["calls"]}
    assert trained == {calls[1]["id"], calls[2]["id"]}, "what never arrived is nobody's to learn from"
    assert all(calls[0]["id"] not in (one["call_id"], one["previous_call_id"]) for one in detail["breaks"])
    feed = lab.on_show.feed()
    assert feed is not None
    feed.refresh()
    assert (feed.table.rows[0].calls, feed.table.rows[0].state) == (3, "succeeded")
