"""What goes wrong with a server has a name, and the lab goes on where it can."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from engines_server import CONTEXT, MODEL, socket_of

from lightning_lab.policy.base import Chunk
from lightning_lab.policy.vllm import VllmPolicy
from lightning_lab.policy.vllm.errors import EngineDiedError, EngineMemoryError, ToolParserError
from lightning_lab.records import Message, Sampling

pytestmark = pytest.mark.timeout(600)  # a server is started again


async def said(policy: VllmPolicy, max_tokens: int) -> Chunk:
    prompt = policy.render([Message(role="user", content="Count from one to one hundred.")], []).ids
    sampling = Sampling(max_tokens=max_tokens, temperature=1.0, seed=1)
    (chunk,) = [chunk async for chunk in policy.generate(prompt, sampling, rollout_id="r")]
    return chunk


async def test_a_server_that_dies_in_the_middle_is_started_again_with_the_published_weights(policy: VllmPolicy) -> None:
    policy.publish(policy.version + 1)
    before = await said(policy, 12)
    (replica,) = policy.replicas
    assert replica.server is not None and replica.server.pid is not None
    lost = asyncio.create_task(said(policy, 512))
    plain, told = VllmPolicy(MODEL, url=socket_of(policy), context_length=CONTEXT), []
    with pytest.raises(EngineDiedError, match=r"broke off while it answered /inference/v1/generate"):
        async for chunk in plain.generate(policy.encode("One, two,"), Sampling(max_tokens=512), rollout_id="r"):
            told.append(chunk)
            if len(told) == 2:
                while replica.open_calls < 1:  # noqa: ASYNC110 - another thread, no event to wait for
                    await asyncio.sleep(0.01)
                os.kill(replica.server.pid, signal.SIGKILL)  # in the middle of both
    assert len(told) >= 2 and all(chunk.finish_reason is None for chunk in told)
    plain.close()
    with pytest.raises(EngineDiedError, match=r"vllm-0 broke off while it answered /inference/v1/generate"):
        await lost
    while replica.ready:  # noqa: ASYNC110 - another thread, no event to wait for
        await asyncio.sleep(0.01)
    after = await said(policy, 12)  # waits until it is back
    assert after.ids.tolist() == before.ids.tolist() and after.versions.tolist() == before.versions.tolist()


def test_a_tool_parser_that_vllm_does_not_know() -> None:
    wrong = VllmPolicy(MODEL, context_length=CONTEXT, tool_parser="hermess")
    with pytest.raises(ToolParserError, match=r"no tool call parser 'hermess'.*hermes"):
        wrong.start()


def test_more_memory_than_there_is() -> None:
    greedy = VllmPolicy(MODEL, context_length=CONTEXT, kv_bytes=2**50)
    with pytest.raises(EngineMemoryError, match=r"not enough memory.*kv_bytes"):
        greedy.start()
