"""Publishing to a running server: two versions in one reply, agreement with the learner, a publish that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from engines_server import CONTEXT, MODEL, sample_of, socket_of, whole
from safetensors.numpy import load_file, save_file

from lightning_lab.gateway import Gateway
from lightning_lab.policy.base import Chunk, LossRow
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.vllm import VllmPolicy
from lightning_lab.policy.vllm.errors import PublishError
from lightning_lab.records import Message, Sample, Sampling, Segment
from lightning_lab.store import Store

pytestmark = pytest.mark.timeout(600)  # a server is started again

STORY = Message(role="user", content="Tell a long story about a lighthouse, its keeper and the sea.")


async def said(policy: VllmPolicy, max_tokens: int, *, temperature: float = 1.0, seed: int | None = None) -> Chunk:
    prompt = policy.render([STORY], []).ids
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed)
    return whole([chunk async for chunk in policy.generate(prompt, sampling, rollout_id="r")])


async def sampled_tokens(policy: VllmPolicy) -> float:
    """By the server's own count, of all its calls."""
    connector = aiohttp.UnixConnector(socket_of(policy).removeprefix("unix://"))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://l/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))


async def row_of(policy: VllmPolicy) -> LossRow:
    prompt, chunk = policy.render([STORY], []).ids, await said(policy, 24, seed=1)
    start, stop = len(prompt), len(prompt) + len(chunk.ids)
    sample = Sample(
        rollout_id="r",
        ids=np.concatenate([prompt, chunk.ids]),
        mask=np.arange(stop) >= start,
        logprobs=np.concatenate([np.zeros(start, np.float32), chunk.logprobs]),
        versions=np.concatenate([np.full(start, -1, np.int32), chunk.versions]),
        segments=(Segment(call_id="c", start=start, stop=stop),),
    )
    return LossRow(sample=sample, advantage=1.0, token_weight=1 / len(chunk.ids))


async def test_a_call_that_is_frozen_during_a_publish_ends_with_two_versions(
    publisher: VllmPolicy, policy: VllmPolicy, learner: DetachedTorchLearner, tmp_path: Path
) -> None:
    """The gateway pauses in the middle of a reply, the learner takes a step and publishes, the reply goes on."""
    row = await row_of(publisher)
    version = publisher.version
    store = Store(tmp_path / "store.sqlite")
    gateway = Gateway(publisher, store, sampling=Sampling(max_tokens=96))
    gateway.start()
    access = gateway.open_rollout("r")
    try:
        import openai

        client = openai.AsyncOpenAI(base_url=f"{access.url}/v1", api_key=access.key, max_retries=0)
        asked = [{"role": "user", "content": STORY.content}]
        calls = [
            asyncio.create_task(client.chat.completions.create(model="any", messages=asked, stream=stream))
            for stream in (False, True)
        ]
        before = await sampled_tokens(policy)
        while publisher.replicas[0].open_calls < 2 or await sampled_tokens(policy) < before + 16:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        report = await asyncio.to_thread(gateway.pause, mode="interrupt")
        assert (report.in_flight, report.interrupted, report.aborted) == (2, 2, 0)
        result = await asyncio.to_thread(
            publisher.update, [[row]], loss="policy_gradient", options={}, learning_rate=1e-4
        )
        told = await asyncio.to_thread(publisher.publish, version + 1)
        gateway.resume()
        await calls[0]
        async for _ in await calls[1]:
            pass
    finally:
        gateway.close()
        store.flush()
        recorded = store.calls("r")
        store.close()
    assert result.metrics["skipped"] == 0.0 and publisher.version == version + 1
    assert len(recorded) == 2
    for call in recorded:
        assert set(call.versions.tolist()) == {version, version + 1}
        assert (np.diff(call.versions) >= 0).all() and np.isfinite(call.logprobs).all()
        (found,) = learner.logprobs([sample_of(call)], temperature=1.0)
        gap = np.abs(found[len(call.prompt_ids) :] - call.logprobs)
        new = call.versions == version + 1  # nothing that the earlier weights had read is left in them
        assert gap[new].max() < 1e-3 < gap[~new].max()
    assert told["parity_logprob_max"] < 1e-3 and told["parity_logprob_mean"] <= told["parity_logprob_max"]
    assert told["publish_s"] >= told["pause_s"] > 0


async def test_a_reply_that_is_told_early_is_the_same(policy: VllmPolicy) -> None:
    """Token by token, with the log-probs and versions of one that comes whole."""
    plain = VllmPolicy(MODEL, url=socket_of(policy), context_length=CONTEXT)
    try:
        for sampling in (Sampling(max_tokens=40, seed=3), Sampling(max_tokens=40, seed=3, stop=(" the",))):
            prompt = policy.render([STORY], []).ids
            told = [chunk async for chunk in plain.generate(prompt, sampling, rollout_id="r")]
            (once,) = [chunk async for chunk in policy.generate(prompt, sampling, rollout_id="r")]
            again = whole(told)
            assert len(told) > 1 and again.ids.tolist() == once.ids.tolist()
            assert again.finish_reason == once.finish_reason and again.versions.tolist() == once.versions.tolist()
            assert np.abs(again.logprobs - once.logprobs).max() < 1e-4
    finally:
        plain.close()


async def test_the_server_has_the_learners_weights_after_a_publish(
    policy: VllmPolicy, learner: DetachedTorchLearner
) -> None:
    before = await said(policy, 8, temperature=0.0)
    row = await row_of(policy)
    policy.update([[row]], loss="policy_gradient", options={}, learning_rate=1e-4)
    policy.publish(policy.version + 1)
    after = await row_of(policy)
    assert (after.sample.versions[after.sample.mask] == policy.version).all()
    (found,) = learner.logprobs([after.sample], temperature=1.0)
    assert np.abs(found - after.sample.logprobs)[after.sample.mask].max() < 1e-3
    assert before.logprobs.tolist() == [0.0] * len(before.ids)  # one token is left at temperature 0


class Halfway:
    """A learner whose weights no server takes: the file is cut off in its data."""

    def __init__(self, learner: DetachedTorchLearner) -> None:
        self._learner = learner

    def __getattr__(self, name: str) -> object:
        return getattr(self._learner, name)

    def export(self, directory: Path) -> None:
        self._learner.export(directory)
        file = directory / "model.safetensors"
        with file.open("r+b") as stream:
            stream.truncate(file.stat().st_size // 2)


class Other(Halfway):
    """A learner of another model: one tensor is missing."""

    def export(self, directory: Path) -> None:
        self._learner.export(directory)
        file = directory / "model.safetensors"
        tensors = load_file(file)
        tensors.pop("model.norm.weight")
        save_file(tensors, file)


@pytest.mark.parametrize(
    ("broken", "words"),
    [(Halfway, "collective_rpc with 500"), (Other, "model.norm.weight")],
)
async def test_a_publish_that_fails_leaves_the_version_before(
    policy: VllmPolicy,
    learner: DetachedTorchLearner,
    broken: type[Halfway],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that was given half a file is started again with the weights before."""
    policy.publish(policy.version + 1)
    version, before = policy.version, await said(policy, 12, seed=5)
    monkeypatch.setattr(policy, "_learner", broken(learner))
    with pytest.raises(PublishError, match=f"(?s)Version {version + 1} was not published.*(?:{words})"):
        policy.publish(version + 1)
    after = await said(policy, 12, seed=5)
    assert after.ids.tolist() == before.ids.tolist() and set(after.versions.tolist()) == {version}
