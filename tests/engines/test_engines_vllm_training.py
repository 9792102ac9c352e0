"""A run that trains: a real agent library, the gateway, the server that samples, the learner, and the weights back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines_server import CONTEXT, MODEL, socket_of

import lightning_lab as ll
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.vllm import VllmPolicy
from lightning_lab.records import Task


@ll.harness(preload=["openai"])
async def writer(task: Any) -> Any:
    import openai

    asked = [{"role": "user", "content": task.prompt}]
    answer = await openai.AsyncOpenAI().chat.completions.create(model="any", messages=asked)
    return answer.choices[0].message.content


@ll.grader
def long_words(task: Any, result: Any) -> float:
    """Different for almost every two replies, so that every group has a signal."""
    return len(str(result.output)) / 100


async def test_every_step_publishes_what_it_learned(
    policy: VllmPolicy, learner: DetachedTorchLearner, tmp_path: Path
) -> None:
    policy.publish(policy.version + 1)  # other tests change the learner, too
    attached = VllmPolicy(MODEL, learner=learner, url=socket_of(policy), context_length=CONTEXT)
    sampling, before = ll.Sampling(temperature=1.0, max_tokens=24), policy.version
    lab = ll.Lab(policy=attached, runs=tmp_path / "runs", sampling=sampling)
    try:
        tasks = [Task(id=f"t{i}", prompt=f"Write one sentence about the number {i}.") for i in range(4)]
        options = {"n": 2, "groups": 1, "learning_rate": 1e-6, "schedule": "collocated", "pause": "interrupt"}
        run = ll.Trainer(lab, writer, tasks, long_words, **options).fit(steps=2)
        await run
        lab.store.flush()
        steps = lab.store.steps(run.id)
    finally:
        lab.close()
    first = steps[0].version  # the server's weights were published before, and keep their version
    assert (
        [step.version for step in steps] == [first, first + 1]
        and first > before
        and not any(step.skipped for step in steps)
    )
    for step in steps:
        assert step.metrics["parity_logprob_max"] < 1e-3 and step.metrics["publish_s"] > 0
        if step.metrics["staleness_max"] == 0:  # what was learned from agrees with what was sampled by these weights
            assert step.metrics["logprob_diff_max"] < 1e-3
    assert steps[0].metrics["staleness_max"] == 0
