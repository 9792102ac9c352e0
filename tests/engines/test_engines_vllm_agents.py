"""Real agents against a real vLLM server: what they were answered is, token by token, what the model said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engines_server import CONTEXT, MODEL, sample_of, socket_of

import lightning_lab as ll
from lightning_lab.harnesses import Harness
from lightning_lab.notebook import Lab, RolloutError
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.vllm import VllmPolicy
from lightning_lab.records import Call, Message

TOOL = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expr": {"type": "string"}}, "required": ["expr"]},
    },
}


def calls_of(lab: Lab, rollout_id: str) -> list[Call]:
    lab.store.flush()
    return [call for call in lab.store.calls(rollout_id) if not call.error]


def check_exact(calls: list[Call], policy: VllmPolicy, learner: DetachedTorchLearner) -> None:
    """Ids, log-probs and versions are there for every token, and the learner says the same of them."""
    assert calls
    for call in calls:
        assert len(call.sampled_ids) == len(call.logprobs) == len(call.versions) > 0
        assert np.isfinite(call.logprobs).all()
        assert set(call.versions.tolist()) == {policy.version}
    samples = [sample_of(call) for call in calls]
    for sample, found in zip(samples, learner.logprobs(samples, temperature=1.0), strict=True):
        assert np.abs(found - sample.logprobs)[sample.mask].max() < 1e-3


def openai_agent(stream: bool) -> Any:
    @ll.harness(preload=["openai"])
    async def talker(task: Any) -> Any:
        import openai

        client = openai.AsyncOpenAI(max_retries=0)
        messages: list[Any] = [{"role": "user", "content": task.prompt}]
        for question in ("Say it once more.", ""):
            answer = await client.chat.completions.create(model="any", messages=messages, stream=stream)
            if stream:
                parts = [part.choices[0].delta.content or "" async for part in answer if part.choices]
                said = "".join(parts)
            else:
                said = answer.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": question}]
        return said

    return talker


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_of_the_openai_sdk(
    lab: Lab, policy: VllmPolicy, learner: DetachedTorchLearner, stream: bool
) -> None:
    rollout = await lab.run(openai_agent(stream), "What is 3 + 4? Answer in one sentence.")
    calls = calls_of(lab, rollout.id)
    assert len(calls) == 2
    check_exact(calls, policy, learner)
    first, second = calls
    assert policy.decode(first.sampled_ids).removesuffix("<|im_end|>").strip() == first.reply.content.strip()
    assert second.reply.content == rollout.output
    together = np.concatenate([first.prompt_ids, first.sampled_ids])
    assert second.prompt_ids[: len(together)].tolist() == together.tolist()  # token in, token out


async def test_mini_swe_agent(lab: Lab, policy: VllmPolicy, learner: DetachedTorchLearner) -> None:
    """A model of this size does not solve anything; what it said is recorded exactly all the same."""
    mini = Harness.profile("mini-swe-agent")
    short = replace(mini, argv=(*mini.argv[:-2], "-c", "agent.step_limit=2", *mini.argv[-2:]))
    try:
        rollout_id = (await lab.run(short, "Write hello into a file named greeting.txt.")).id
    except RolloutError as error:
        rollout_id = error.rollout.id
    check_exact(calls_of(lab, rollout_id), policy, learner)


def test_the_server_renders_and_parses_by_its_own_code(policy: VllmPolicy) -> None:
    said = '<tool_call>\n{"name": "calc", "arguments": {"expr": "3+4"}}\n</tool_call><|im_end|>'
    message = policy.parse(policy.encode(said), [TOOL])
    assert [(call["name"], call["arguments"]) for call in message.tool_calls] == [("calc", '{"expr": "3+4"}')]
    assert policy.parse(policy.encode("Seven.<|im_end|>")).content == "Seven."
    conversation = [Message(role="user", content="What is 3+4?")]
    assert '"calc"' in policy.decode(policy.render(conversation, [TOOL]).ids)


def test_both_ways_to_render_agree(policy: VllmPolicy) -> None:
    """The lab's own rendering with the same template gives the ids that the server's gives; so does its parsing."""
    plain = VllmPolicy(MODEL, url=socket_of(policy), context_length=CONTEXT)
    try:
        conversation = [Message(role="system", content="Be brief."), Message(role="user", content="What is 3+4?")]
        assert policy.render(conversation, [TOOL]).ids.tolist() == plain.render(conversation, [TOOL]).ids.tolist()
        said = plain.encode('Now.\n<tool_call>\n{"name": "calc", "arguments": {"expr": "3+4"}}\n</tool_call><|im_end|>')
        ours, theirs = plain.parse(said, [TOOL]), policy.parse(said, [TOOL])
        assert ours.content.strip() == theirs.content.strip() == "Now."
        assert [call["name"] for call in ours.tool_calls] == [call["name"] for call in theirs.tool_calls]
    finally:
        plain.close()
