"""Tiny random models with a byte-level tokenizer, made on the spot."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lightning_lab.policy.base import LossRow
from lightning_lab.records import Sample, Sampling

if TYPE_CHECKING:
    from lightning_lab.policy.torch import TorchPolicy

os.environ["HF_HUB_OFFLINE"] = "1"

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_tokenizer(directory: Path, template: str | None = CHATML) -> int:
    """A byte-level tokenizer without merges; returns its vocabulary size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab_size()


@pytest.fixture(scope="session", params=["qwen2", "llama"])
def model_directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def qwen_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("qwen"), "qwen2")


def write_model(directory: Path, kind: str, *, seed: int = 0, hidden: int = 64) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    vocabulary = write_tokenizer(directory)
    config_type, model_type = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[kind]
    torch.manual_seed(seed)
    model = model_type(
        config_type(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            initializer_range=0.3,
            tie_word_embeddings=kind == "qwen2",
            eos_token_id=vocabulary - 1,
            bos_token_id=None,
            pad_token_id=None,
        )
    )
    model.save_pretrained(directory)
    return directory


@pytest.fixture
def bare_tokenizer(tmp_path: Path) -> Path:
    """A tokenizer without a chat template and without a model."""
    write_tokenizer(tmp_path, template=None)
    return tmp_path


@pytest.fixture
def make_model() -> Callable[..., Path]:
    return write_model


@pytest.fixture
def make_row() -> Callable[..., LossRow]:
    return sampled_row


def sampled_row(
    policy: TorchPolicy, index: int, *, advantage: float = 1.0, temperature: float = 1.0, shared: int = 0
) -> LossRow:
    """A prompt (``shared`` tokens of it equal for all rows) and a sampled reply, with the sampler's own log-probs."""
    beginning = np.random.default_rng(99).integers(0, 256, size=shared)
    own = np.random.default_rng(index).integers(0, 256, size=5 + 3 * index)
    prompt = np.concatenate([beginning, own]).astype(np.int32)

    async def sample() -> tuple[list[int], list[float]]:
        asked = Sampling(temperature=temperature, max_tokens=6 + index, seed=index)
        chunks = [c async for c in policy.generate(prompt, asked, rollout_id="r")]
        return [int(i) for c in chunks for i in c.ids], [float(p) for c in chunks for p in c.logprobs]

    ids, logprobs = asyncio.run(sample())
    context = np.zeros(len(prompt), dtype=np.float32)
    mask = np.concatenate([context.astype(bool), np.ones(len(ids), dtype=bool)])
    return LossRow(
        sample=Sample(
            rollout_id=f"r-{index}",
            ids=np.concatenate([prompt, np.asarray(ids, dtype=np.int32)]),
            mask=mask,
            logprobs=np.concatenate([context, np.asarray(logprobs, dtype=np.float32)]),
            versions=np.where(mask, 0, -1).astype(np.int32),
            segments=(),
        ),
        advantage=advantage,
        token_weight=1.0 / (4 * len(ids)),
    )
