"""The engine's tokens and log-probs are those of the plain model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_lab.policy.base import ContextOverflowError, Learner, Policy
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.records import Floats, Ids, Message, Sampling


@pytest.fixture
def policy(model_directory: Path) -> Iterator[TorchPolicy]:
    policy = TorchPolicy(model_directory, seed=1, max_batch=4)
    policy.start()
    yield policy
    policy.close()


async def reply(policy: TorchPolicy, prompt: Ids, **sampling: object) -> tuple[Ids, Floats, str]:
    chunks = [c async for c in policy.generate(prompt, Sampling(**sampling), rollout_id="r-1")]  # type: ignore[arg-type]
    assert chunks[-1].finish_reason is not None
    return (
        np.concatenate([c.ids for c in chunks]),
        np.concatenate([c.logprobs for c in chunks]),
        chunks[-1].finish_reason,
    )


def full_logits(policy: TorchPolicy, ids: Ids) -> torch.Tensor:
    with torch.no_grad():
        return policy._model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]


def prompts(count: int) -> list[Ids]:
    generator = np.random.default_rng(5)
    return [generator.integers(0, 256, size=int(n)).astype(np.int32) for n in generator.integers(1, 60, size=count)]


def test_is_a_policy_and_a_learner(policy: TorchPolicy) -> None:
    assert isinstance(policy, Policy)
    assert isinstance(policy, Learner)


async def test_logprobs_equal_a_full_forward_with_mixed_lengths_and_joins(policy: TorchPolicy) -> None:
    async def one(index: int, prompt: Ids) -> tuple[Ids, Floats, str]:
        await asyncio.sleep(0.004 * index)  # joins a running batch
        return await reply(policy, prompt, max_tokens=5 + 7 * (index % 5), temperature=0.7)

    asked = prompts(12)
    answers = await asyncio.gather(*(one(index, prompt) for index, prompt in enumerate(asked)))
    for prompt, (ids, logprobs, _) in zip(asked, answers, strict=True):
        logits = full_logits(policy, np.concatenate([prompt, ids]))[len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits / 0.7, -1)[torch.arange(len(ids)), torch.from_numpy(ids).long()]
        np.testing.assert_allclose(logprobs, expected.numpy(), atol=1e-4)


async def test_greedy_ids_equal_generate(policy: TorchPolicy) -> None:
    for prompt in prompts(3):
        ids, logprobs, _ = await reply(policy, prompt, temperature=0.0, max_tokens=12)
        expected = policy._model.generate(
            torch.from_numpy(prompt.astype(np.int64))[None], max_new_tokens=12, do_sample=False
        )[0, len(prompt) :]
        assert ids.tolist() == expected.tolist()
        assert not logprobs.any()


async def test_context_overflow_and_length(policy: TorchPolicy) -> None:
    with pytest.raises(ContextOverflowError, match="256"):
        policy.generate(np.zeros(256, dtype=np.int32), Sampling(), rollout_id="r")
    ids, _, reason = await reply(policy, np.zeros(250, dtype=np.int32), seed=3)
    assert len(ids) <= 6
    assert reason == "length" or ids[-1] in policy._codec.stop_ids


def test_render_parse_round_trip(policy: TorchPolicy) -> None:
    ids = policy.render([Message(role="user", content="hi")], []).ids
    assert policy.decode(ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
