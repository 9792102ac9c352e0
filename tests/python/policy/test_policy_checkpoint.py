"""Save and load: what survives and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lightning_lab.policy.base import LossRow
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.policy.torch.checkpoint import CheckpointError
from lightning_lab.records import Sampling

MakeRow = Callable[..., LossRow]


@pytest.fixture
def policy(qwen_directory: Path) -> Iterator[TorchPolicy]:
    policy = TorchPolicy(qwen_directory, seed=3, train_threads=1)
    policy.start()
    yield policy
    policy.close()


def step(policy: TorchPolicy, rows: list[LossRow]) -> None:
    policy.update([rows], loss="policy_gradient", options={}, learning_rate=1e-3)
    policy.publish(policy.version + 1)


def same_weights(left: TorchPolicy, right: TorchPolicy) -> bool:
    mine, theirs = left._model.state_dict(), right._model.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


async def sample(policy: TorchPolicy) -> list[int]:
    prompt = policy._codec.encode("hello")
    return [int(i) async for c in policy.generate(prompt, Sampling(max_tokens=8), rollout_id="r") for i in c.ids]


async def test_a_loaded_policy_goes_on_as_if_nothing_happened(
    policy: TorchPolicy, qwen_directory: Path, tmp_path: Path, make_row: MakeRow
) -> None:
    rows = await run_in_thread(lambda: [make_row(policy, index) for index in range(2)])
    step(policy, rows)
    policy.save(tmp_path / "one")
    twin = TorchPolicy(qwen_directory, seed=99, train_threads=1)
    twin.load(tmp_path / "one")
    assert twin.version == policy.version == 1
    assert same_weights(policy, twin)
    assert await sample(policy) == await sample(twin)
    step(policy, rows)
    step(twin, rows)
    assert same_weights(policy, twin), "the optimiser's moments were restored"
    twin.close()


def test_a_checkpoint_is_a_model_directory(policy: TorchPolicy, tmp_path: Path, make_row: MakeRow) -> None:
    step(policy, [make_row(policy, 0)])
    policy.save(tmp_path / "one")
    fresh = TorchPolicy(tmp_path / "one")
    fresh.start()
    assert same_weights(policy, fresh)
    fresh.close()


def test_saving_again_replaces_and_leaves_nothing_behind(
    policy: TorchPolicy, tmp_path: Path, make_row: MakeRow
) -> None:
    policy.save(tmp_path / "latest")
    step(policy, [make_row(policy, 0)])
    policy.save(tmp_path / "latest")
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]
    assert not [path for path in (tmp_path / "latest").rglob("*") if path.suffix in (".pt", ".bin", ".pkl")]
    policy.load(tmp_path / "latest")
    assert policy.version == 1


def test_loading_never_lowers_the_version(policy: TorchPolicy, tmp_path: Path) -> None:
    policy.save(tmp_path / "zero")
    policy.publish(7)
    policy.load(tmp_path / "zero")
    assert policy.version == 7


def test_other_models_and_damaged_checkpoints_are_refused(
    policy: TorchPolicy, tmp_path: Path, make_model: Callable[..., Path]
) -> None:
    (tmp_path / "other").mkdir()
    other = TorchPolicy(make_model(tmp_path / "other", "qwen2", hidden=32))
    other.save(tmp_path / "theirs")
    other.close()
    with pytest.raises(CheckpointError, match="another model"):
        policy.load(tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        policy.load(tmp_path / "nowhere")
    policy.save(tmp_path / "mine")
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"\0" * 100)
    before = {name: value.clone() for name, value in policy._model.state_dict().items()}
    with pytest.raises(CheckpointError, match="damaged"):
        policy.load(tmp_path / "mine")
    assert all(torch.equal(value, before[name]) for name, value in policy._model.state_dict().items())


async def test_a_sampling_copy_follows_at_each_publish(qwen_directory: Path, make_row: MakeRow) -> None:
    policy = TorchPolicy(qwen_directory, sampling_dtype="bfloat16", train_threads=1)
    rows = await run_in_thread(lambda: [make_row(policy, 1)])
    assert (rows[0].sample.logprobs[rows[0].sample.mask] < 0).all()
    embedding = policy._sampled.get_input_embeddings().weight
    assert embedding.dtype == torch.bfloat16
    before = embedding.clone()
    policy.update([rows], loss="policy_gradient", options={}, learning_rate=1e-2)
    assert torch.equal(embedding, before)
    policy.publish(1)
    assert torch.equal(embedding, policy._model.get_input_embeddings().weight.bfloat16())
    assert not torch.equal(embedding, before)
    policy.close()


async def run_in_thread(function: Callable[[], list[LossRow]]) -> list[LossRow]:
    return await asyncio.to_thread(function)
