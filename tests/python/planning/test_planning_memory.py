"""The memory plan: published sizes of models, sizes that transformers builds, and memory that training really took."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lightning_lab.planning import DoesNotFitError, EngineLayout, Layout, ModelShape, UnknownShapeError, plan_memory
from lightning_lab.planning.memory import GIB, changes_that_fit
from lightning_lab.policy.base import LossRow
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.records import Sample

SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
QWEN2_5_0_5B = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
QWEN3_30B_A3B = {
    **QWEN3_8B,
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
LINEAR = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
QWEN3_5_9B = {
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        **LINEAR,
        "model_type": "qwen3_5_text",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248320,
        "full_attention_interval": 4,
    },
}


@pytest.mark.parametrize(
    ("config", "published", "active"),
    [
        (SMOLLM2, 134_515_008, 134_515_008),
        (QWEN2_5_0_5B, 494_032_768, 494_032_768),
        (QWEN3_8B, 8_190_735_360, 8_190_735_360),
        (QWEN3_30B_A3B, 30_532_122_624, 3_353_032_704),
        (QWEN3_5_9B, 8_953_803_264, 8_953_803_264),
    ],
)
def test_parameters_are_those_that_are_published(config: dict[str, Any], published: int, active: int) -> None:
    shape = ModelShape.from_config(config)
    assert (shape.parameters, shape.active_parameters) == (published, active)


SMALL = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}
HEADS = {**SMALL, "head_dim": 24}
EXPERTS = {**HEADS, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("llama", HEADS),
        ("llama", {**HEADS, "mlp_bias": True, "attention_bias": True}),
        ("mistral", HEADS),
        ("qwen2", SMALL),
        ("qwen3", {**HEADS, "attention_bias": True}),
        ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1]}),
        ("qwen3_moe", {**EXPERTS, "decoder_sparse_step": 2}),
        ("qwen3_5_text", {**HEADS, **LINEAR}),
        ("qwen3_5_moe_text", {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 56}),
    ],
)
def test_parameters_are_those_that_transformers_builds(family: str, sizes: dict[str, Any], tied: bool) -> None:
    config = {**sizes, "model_type": family, "tie_word_embeddings": tied}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert ModelShape.from_config(config).parameters == sum(part.numel() for part in model.parameters())


def test_a_config_that_is_not_known_is_named() -> None:
    with pytest.raises(UnknownShapeError, match=r"'mamba2' are not known here, only those of llama, .*qwen3_5_text"):
        ModelShape.from_config({"model_type": "mamba2"})
    with pytest.raises(UnknownShapeError, match="'qwen3_moe' has no 'num_experts'"):
        ModelShape.from_config({**QWEN3_8B, "model_type": "qwen3_moe"})


def test_keys_and_values_exist_in_full_attention_layers_only() -> None:
    assert ModelShape.from_config(QWEN3_8B).kv_per_token == 2 * 36 * 8 * 128
    hybrid = ModelShape.from_config(QWEN3_5_9B)
    assert hybrid.full_layers == 8 and hybrid.kv_per_token == 2 * 8 * 4 * 256
    layout = Layout(gpus=1, gpu_gib=80, micro_batch_tokens=1, engine=EngineLayout(sequences=3, sequence_tokens=7))
    sizes = {line.name: line.bytes for line in plan_memory(hybrid, layout).lines if line.moment == "sampling"}
    assert sizes["keys and values"] == 2 * 8 * 4 * 256 * 2 * 3 * 7
    assert sizes["states of sequences"] == 3 * 24 * (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2)


def test_the_plan_foresees_what_training_on_a_cpu_keeps() -> None:
    """Weights, gradients and moments to the byte; saved activations within a quarter: the plan leaves out the mask and
    the norms' few numbers."""
    tokens = 256
    policy = TorchPolicy("quickstart")
    policy.start()
    try:
        model, optimizer = policy._model, policy._learner.optimizer
        own = {part.untyped_storage().data_ptr() for part in model.parameters()}
        saved: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in own:
                saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            policy.update([[_row(tokens, model.config.vocab_size)]], loss="ppo_clip", options={}, learning_rate=1e-6)
        moments = sum(part.nbytes for state in optimizer.state.values() for part in state.values() if part.ndim)
        held = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    finally:
        policy.close()
    shape = ModelShape.from_config(json.loads((resolve_model("quickstart") / "config.json").read_text()))
    engine = EngineLayout(shares_weights=True, dtype="float32", kv_dtype="float32", sequences=1, sequence_tokens=1)
    layout = Layout(gpus=1, gpu_gib=1, micro_batch_tokens=tokens, compute="float32", checkpointing=False, engine=engine)
    planned = {line.name: line.bytes for line in plan_memory(shape, layout).lines if line.moment == "learning"}
    assert planned["weights"] == planned["gradients"] == sum(part.nbytes for part in model.parameters())
    assert planned["moments"] == moments
    logits = tokens * shape.vocabulary * 4
    assert held - logits == pytest.approx(planned["activations"], rel=0.25)


def _row(tokens: int, vocabulary: int) -> LossRow:
    mask = np.arange(tokens) > 0
    sample = Sample(
        rollout_id="r",
        ids=np.random.default_rng(0).integers(0, vocabulary, tokens).astype(np.int32),
        mask=mask,
        logprobs=np.where(mask, -5.0, 0.0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        segments=(),
    )
    return LossRow(sample=sample, advantage=1.0, token_weight=1.0 / tokens)


LARGE = Layout(gpus=8, gpu_gib=80, micro_batch_tokens=8192)


def test_sharding_splits_what_is_learned_and_nothing_else() -> None:
    shape = ModelShape.from_config(QWEN3_8B)
    one, eight = (
        {
            line.name: line.bytes
            for line in plan_memory(shape, replace(LARGE, shards=shards)).lines
            if line.moment == "learning"
        }
        for shards in (1, 8)
    )
    assert all(one[name] == 8 * eight[name] for name in ("weights", "gradients", "moments"))
    assert one["moments"] == 8 * shape.parameters and one["gradients"] == one["weights"] == 4 * shape.parameters
    assert one["activations"] == eight["activations"]


def test_checkpointing_keeps_each_layers_input_and_one_layer() -> None:
    shape = ModelShape.from_config(QWEN3_8B)
    kept, largest = shape.activations()
    sizes = [
        next(
            line.bytes
            for line in plan_memory(shape, replace(LARGE, checkpointing=on)).lines
            if line.name == "activations"
        )
        for on in (False, True)
    ]
    assert sizes == [8192 * 2 * kept, 8192 * 2 * (36 * 4096 + largest)]


def test_lora_trains_adapters_only() -> None:
    shape = ModelShape.from_config(QWEN3_8B)
    h, q, kv, wide = 4096, 4096, 1024, 12288
    assert shape.adapters(16) == 16 * 36 * ((h + q) * 2 + (h + kv) * 2 + 3 * (h + wide))
    lines = plan_memory(shape, replace(LARGE, lora_rank=16)).lines
    sizes = {line.name: line.bytes for line in lines if line.moment == "learning"}
    assert sizes["moments"] == shape.adapters(16) * 8 / 8
    assert sizes["weights"] == (shape.parameters * 2 + shape.adapters(16) * 4) / 8


def test_gpus_of_their_own_hold_no_learner_while_sampling() -> None:
    shape = ModelShape.from_config(QWEN3_8B)
    apart = plan_memory(shape, replace(LARGE, collocated=False))
    together = plan_memory(shape, LARGE)
    left = together.total("sampling") - apart.total("sampling")
    assert left == pytest.approx(12 * shape.parameters / 8 / GIB)
    assert {line.moment for line in apart.lines} == {"sampling", "learning"}
    awake = plan_memory(shape, replace(LARGE, engine=EngineLayout(sleeps=False)))
    assert awake.total("learning") - together.total("learning") > 2 * shape.parameters / GIB


def test_a_plan_that_cannot_fit_is_refused_with_changes_that_really_fit() -> None:
    shape = ModelShape.from_config(QWEN3_8B)
    small = replace(LARGE, gpus=2, engine=EngineLayout(sequences=32, sequence_tokens=4096))
    with pytest.raises(
        DoesNotFitError, match=r"needs .* GiB on each GPU while \w+, and a GPU has 80 GiB.*One of these"
    ) as said:
        plan_memory(shape, small).check()
    assert changes_that_fit(shape, small) and all(
        change in str(said.value) for change in changes_that_fit(shape, small)
    )
    gpus = int(re.search(r"gpus: (\d+)", str(said.value)).group(1))  # type: ignore[union-attr]
    assert plan_memory(shape, replace(small, gpus=gpus)).fits
    with pytest.raises(DoesNotFitError, match="No single change makes it fit"):
        plan_memory(shape, replace(LARGE, gpus=1, gpu_gib=8)).check()


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (replace(LARGE, shards=3), "shards is 3, which does not divide 8 GPUs"),
        (replace(LARGE, micro_batch_tokens=0), "micro_batch_tokens is 0"),
        (replace(LARGE, weights="int4"), "no dtype 'int4'"),
        (replace(LARGE, engine=EngineLayout(tensor_parallel=3)), "tensor_parallel is 3"),
    ],
)
def test_layouts_that_contradict_themselves_are_named(layout: Layout, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_memory(ModelShape.from_config(SMOLLM2), layout)


def test_a_plan_is_a_table_as_text_and_as_html() -> None:
    plan = plan_memory(ModelShape.from_config(QWEN3_5_9B), LARGE)
    assert "8.95 B parameters on 8 × 80 GiB: fits" in str(plan)
    assert re.search(r"learning: moments +8\.34 GiB", str(plan))
    assert plan._repr_html_().count("<tr>") == len(str(plan).splitlines())
