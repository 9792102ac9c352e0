"""The engine under everyday trouble: cancellation, publishing, limits, broken weights, closing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_lab.policy.base import Chunk, PolicyError
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.policy.torch.forward import HuggingFaceForward
from lightning_lab.policy.torch.kv import KvStore
from lightning_lab.policy.torch.sampler import draw, sampled_distribution
from lightning_lab.records import Floats, Ids, Sampling


@pytest.fixture
def policy(qwen_directory: Path) -> Iterator[TorchPolicy]:
    policy = endless(TorchPolicy(qwen_directory, seed=1, max_batch=4))
    yield policy
    policy.close()


def endless(policy: TorchPolicy) -> TorchPolicy:
    """No token ends a reply, so that tests decide how long replies are."""
    policy.start()
    policy._engine._stop_ids = frozenset()
    return policy


def prompt(length: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 256, size=length).astype(np.int32)


async def collect(policy: TorchPolicy, ids: Ids, **sampling: object) -> list[Chunk]:
    return [c async for c in policy.generate(ids, Sampling(**sampling), rollout_id="r")]  # type: ignore[arg-type]


def sampled(chunks: list[Chunk]) -> tuple[Ids, Floats]:
    return np.concatenate([c.ids for c in chunks]), np.concatenate([c.logprobs for c in chunks])


def expected_logprobs(policy: TorchPolicy, ids: Ids, reply: Ids) -> Floats:
    with torch.no_grad():
        logits = policy._model(torch.from_numpy(np.concatenate([ids, reply]).astype(np.int64))[None]).logits[0]
    chosen = torch.log_softmax(logits[len(ids) - 1 : -1], -1)[torch.arange(len(reply)), torch.from_numpy(reply).long()]
    return np.asarray(chosen.numpy())


async def until_idle(policy: TorchPolicy) -> None:
    while policy._engine.open:  # noqa: ASYNC110 (the engine is a thread, nothing to await)
        await asyncio.sleep(0.001)


async def test_closing_the_iterator_frees_the_row(policy: TorchPolicy) -> None:
    stream = policy.generate(prompt(5), Sampling(max_tokens=240), rollout_id="r")
    assert len((await anext(stream)).ids) > 0
    await stream.aclose()  # type: ignore[attr-defined]
    await asyncio.wait_for(until_idle(policy), 60)


async def test_cancelling_the_task_frees_the_row(policy: TorchPolicy) -> None:
    others = [asyncio.create_task(collect(policy, prompt(5, n), max_tokens=30, seed=n)) for n in range(3)]
    task = asyncio.create_task(collect(policy, prompt(9), max_tokens=240))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for n, chunks in enumerate(await asyncio.gather(*others)):
        ids, logprobs = sampled(chunks)
        np.testing.assert_allclose(logprobs, expected_logprobs(policy, prompt(5, n), ids), atol=1e-4)
    await asyncio.wait_for(until_idle(policy), 60)


def test_a_loop_that_ended_leaves_nothing_running(policy: TorchPolicy) -> None:
    async def leave() -> None:
        stream = policy.generate(prompt(5), Sampling(max_tokens=240), rollout_id="r")
        await anext(stream)

    asyncio.run(leave())
    asyncio.run(asyncio.wait_for(until_idle(policy), 60))


async def test_many_loops_share_one_engine(policy: TorchPolicy) -> None:
    def in_own_loop(n: int) -> Ids:
        return sampled(asyncio.run(collect(policy, prompt(5), max_tokens=12, seed=n)))[0]

    apart = await asyncio.gather(*(asyncio.to_thread(in_own_loop, n) for n in (1, 2)))
    here = [sampled(await collect(policy, prompt(5), max_tokens=12, seed=n))[0] for n in (1, 2)]
    assert [a.tolist() for a in apart] == [h.tolist() for h in here]


async def test_a_seed_decides_the_reply_whatever_else_runs(policy: TorchPolicy) -> None:
    alone = sampled(await collect(policy, prompt(7), max_tokens=20, seed=11))[0]
    crowd = await asyncio.gather(*(collect(policy, prompt(7, n), max_tokens=20, seed=n + 11) for n in range(6)))
    assert sampled(crowd[0])[0].tolist() == alone.tolist()


async def test_more_requests_than_rows_are_all_answered(policy: TorchPolicy) -> None:
    answers = await asyncio.gather(*(collect(policy, prompt(3 + n, n), max_tokens=9) for n in range(20)))
    assert all(len(sampled(chunks)[0]) == 9 for chunks in answers)


async def test_prompts_that_continue_others_read_only_what_is_new(policy: TorchPolicy) -> None:
    first = prompt(60)
    ids, _ = sampled(await collect(policy, first, max_tokens=20))
    read: list[int] = []
    forward = policy._engine._reader._forward

    def watched(kv: KvStore, ids: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        read.append(ids.shape[1])
        return forward(kv, ids, *rest)

    policy._engine._reader._forward = watched  # type: ignore[assignment]
    second = np.concatenate([first, ids, prompt(10, 1)])
    reply, logprobs = sampled(await collect(policy, second, max_tokens=5))
    assert read[0] == 11, "the last sampled token was never read, and ten are new"
    np.testing.assert_allclose(logprobs, expected_logprobs(policy, second, reply), atol=1e-4)


async def test_publishing_in_the_middle_of_a_reply(policy: TorchPolicy) -> None:
    ids = prompt(40)
    stream = policy.generate(ids, Sampling(max_tokens=200, seed=3), rollout_id="r")
    chunks = [await anext(stream)]
    with policy._engine.weights, torch.no_grad():
        for parameter in policy._model.parameters():
            parameter.mul_(1.1)
    policy.publish(1)
    chunks += [chunk async for chunk in stream]
    reply, logprobs = sampled(chunks)
    versions = np.concatenate([c.versions for c in chunks])
    assert len(reply) == 200
    assert (np.diff(versions) >= 0).all()
    assert set(versions.tolist()) == {0, 1}
    new = versions == 1
    np.testing.assert_allclose(logprobs[new], expected_logprobs(policy, ids, reply)[new], atol=1e-3)


async def test_versions_differ_before_and_after_a_publish(policy: TorchPolicy) -> None:
    before = await collect(policy, prompt(30), max_tokens=3)
    policy.publish(5)
    after = await collect(policy, prompt(30), max_tokens=3)
    assert {int(v) for c in before for v in c.versions} == {0}
    assert {int(v) for c in after for v in c.versions} == {5} == {policy.version}
    with pytest.raises(PolicyError, match="used already"):
        policy.publish(5)


async def test_rl_4018_what_old_weights_read_of_a_prompt_is_not_used_after_a_publish(policy: TorchPolicy) -> None:
    ids = prompt(60)
    sampled(await collect(policy, ids, max_tokens=4, seed=1))
    with policy._engine.weights, torch.no_grad():
        for parameter in policy._model.parameters():
            parameter.mul_(1.2)
    policy.publish(1)
    reply, logprobs = sampled(await collect(policy, ids, max_tokens=4, seed=1))
    np.testing.assert_allclose(logprobs, expected_logprobs(policy, ids, reply), atol=1e-4)


async def test_stop_texts_end_a_reply(policy: TorchPolicy) -> None:
    free, _ = sampled(await collect(policy, prompt(5), max_tokens=30, seed=2))
    text = policy.decode(free)
    stop = text[4:6]
    chunks = await collect(policy, prompt(5), max_tokens=30, seed=2, stop=(stop,))
    ids, _ = sampled(chunks)
    assert chunks[-1].finish_reason == "stop"
    assert ids.tolist() == free[: len(ids)].tolist()
    assert stop in policy.decode(ids)
    assert stop not in policy.decode(ids[:-1])


async def test_end_of_turn_ends_a_reply_and_is_kept(policy: TorchPolicy) -> None:
    free, _ = sampled(await collect(policy, prompt(5), max_tokens=30, seed=2))
    policy._engine._stop_ids = frozenset({int(free[7])})
    chunks = await collect(policy, prompt(5), max_tokens=30, seed=2)
    ids, logprobs = sampled(chunks)
    end = free.tolist().index(free[7])
    assert ids.tolist() == free[: end + 1].tolist()
    assert len(logprobs) == len(ids)
    assert chunks[-1].finish_reason == "stop"


async def test_filtered_distributions_are_those_sampled_from(policy: TorchPolicy) -> None:
    ids, logprobs = sampled(await collect(policy, prompt(5), max_tokens=10, top_k=1, temperature=2.0))
    greedy, _ = sampled(await collect(policy, prompt(5), max_tokens=10, temperature=0.0))
    assert ids.tolist() == greedy.tolist()
    assert not logprobs.any()


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4, 1)
    kept = sampled_distribution(
        logits, torch.ones(4), torch.tensor([0.49, 0.79, 1.0, 0.0]), torch.tensor([0, 0, 2, 0])
    ).exp()
    expected = torch.tensor([[1, 0, 0, 0], [0.625, 0.375, 0, 0], [0.625, 0.375, 0, 0], [1, 0, 0, 0]])
    torch.testing.assert_close(kept, expected, atol=1e-5, rtol=0)


def test_drawing_follows_the_distribution_and_never_hits_probability_zero() -> None:
    logprobs = torch.log(torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])).repeat(1000, 1)
    uniforms = torch.linspace(0, 1, 1000, dtype=torch.float64)
    ids, chosen = draw(logprobs, uniforms)
    assert set(ids.tolist()) == {1, 3}
    assert (ids == 1).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert torch.isfinite(chosen).all()


async def test_memory_limits_make_requests_wait(qwen_directory: Path) -> None:
    # Two layers, two heads of 16, float32, keys and values: 512 bytes a token. Rows of about 200 do not fit together.
    policy = endless(TorchPolicy(qwen_directory, seed=1, kv_bytes=512 * 300))
    answers = await asyncio.gather(*(collect(policy, prompt(40, n), max_tokens=150, seed=n) for n in range(4)))
    for n, chunks in enumerate(answers):
        ids, logprobs = sampled(chunks)
        assert len(ids) == 150
        np.testing.assert_allclose(logprobs, expected_logprobs(policy, prompt(40, n), ids), atol=1e-3)
    kv = policy._engine._reader.kv
    assert kv.rows * kv.length <= 300
    policy.close()


async def test_both_forward_passes_agree(qwen_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = endless(TorchPolicy(qwen_directory))
    monkeypatch.setattr("lightning_lab.policy.torch.policy.best_forward", lambda model, _: HuggingFaceForward(model))
    slow = endless(TorchPolicy(qwen_directory))
    assert type(fast._engine._reader._forward) is not type(slow._engine._reader._forward)
    for length in (3, 50):
        left, right = [sampled(await collect(p, prompt(length), max_tokens=25, seed=4)) for p in (fast, slow)]
        assert left[0].tolist() == right[0].tolist()
        np.testing.assert_allclose(left[1], right[1], atol=1e-4)
    fast.close()
    slow.close()


async def test_diverged_weights_are_a_named_error_and_heal(policy: TorchPolicy) -> None:
    kept = {name: value.clone() for name, value in policy._model.state_dict().items()}
    with policy._engine.weights, torch.no_grad():
        policy._model.get_input_embeddings().weight.fill_(float("nan"))
    for temperature in (0.0, 1.0):
        with pytest.raises(PolicyError, match="not finite"):
            await collect(policy, prompt(20), temperature=temperature)
    with policy._engine.weights:
        policy._model.load_state_dict(kept)
    policy.publish(1)
    assert len(sampled(await collect(policy, prompt(20), max_tokens=5))[0]) == 5


async def test_a_failing_step_fails_its_replies_only(policy: TorchPolicy) -> None:
    forward = policy._engine._reader._forward
    policy._engine._reader._forward = None  # type: ignore[assignment]
    with pytest.raises(PolicyError, match="Sampling failed"):
        await collect(policy, prompt(5))
    policy._engine._reader._forward = forward
    assert await collect(policy, prompt(5), max_tokens=2)


async def test_closing_ends_open_replies(policy: TorchPolicy) -> None:
    task = asyncio.create_task(collect(policy, prompt(5), max_tokens=240))
    await asyncio.sleep(0.01)
    await asyncio.to_thread(policy.close)
    with pytest.raises(PolicyError, match="closed"):
        await task
    policy.close()
    with pytest.raises(PolicyError, match="closed"):
        policy.start()
    assert "lightning-lab-engine" not in {thread.name for thread in threading.enumerate()}


def test_the_callers_torch_threads_are_left_alone(qwen_directory: Path) -> None:
    before = torch.get_num_threads()
    policy = TorchPolicy(qwen_directory)
    policy.start()
    assert torch.get_num_threads() == before
    policy.close()
