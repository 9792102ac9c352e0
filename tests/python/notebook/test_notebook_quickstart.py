"""The real thing: the shipped model, an unmodified agent library, generated tasks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.catalog import resolve_model

OpenLab = Callable[..., Lab]


@ll.harness(preload=["agents"])
async def solver(task: Any) -> Any:
    from agents import Agent, Runner, function_tool

    @function_tool
    def calc(expr: str) -> str:
        """Evaluate an arithmetic expression."""
        return str(eval(expr, {"__builtins__": {}}))

    return (await Runner.run(Agent(name="solver", tools=[calc]), task.prompt)).final_output


@ll.grader
def exact(task: Any, result: Any) -> float:
    return float(str(result.output).strip() == task.answer)


async def test_openai_agents_run_and_train_on_the_quickstart_model(open_lab: OpenLab) -> None:
    train, _ = ll.tasks.reasoning_gym("chain_sum", 40, seed=0).split(0.9)
    lab = open_lab(ll.Policy.torch("quickstart"))
    rollout = await lab.run(solver, train[0], grader=exact)
    assert rollout.reward in (0.0, 1.0)
    call = rollout.call(0)
    assert call.protocol == "responses" and "calc" in str(call.tools)
    assert len(call.sampled_ids) == len(call.logprobs) and (call.logprobs <= 0).all()

    run = ll.Trainer(lab, solver, train, exact, n=4, groups=2, learning_rate=1e-3).fit(steps=2)
    await run
    steps = run.steps()
    assert run.state == "finished" and list(steps["rollouts"]) == [8, 8]
    updated = steps[steps["skipped"] == ""]
    assert (updated["grad_norm"] > 0).all() and (updated["entropy"] > 0).all()
    assert steps["version"].iloc[-1] == len(updated)
    frame = run.rollouts()
    assert set(frame["state"]) <= {"succeeded", "failed"} and (frame["calls"] >= 1).all()
    weighed = frame[frame["step"].isin(updated.index)]
    effective, planned = weighed["effective_weight"].to_numpy(), weighed["weight"].to_numpy()
    assert effective == pytest.approx(planned), "nothing was corrected"
    samples = run.rollout(frame.index[0]).samples()
    assert samples and all(sample.mask.any() for sample in samples)


def test_a_tokenizer_without_a_chat_template_is_named(open_lab: OpenLab, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(resolve_model("quickstart"), model)
    (model / "chat_template.jinja").unlink()
    with pytest.raises(PolicyError, match="chat template"):
        open_lab(ll.Policy.torch(model))
