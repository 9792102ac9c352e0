"""Settings → verl's own configuration of a training worker."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from verl.trainer.config import CheckpointConfig
from verl.workers.config import (
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    McoreCheckpointConfig,
    McoreEngineConfig,
    McoreOptimizerConfig,
    TrainingWorkerConfig,
)

from lightning_lab.policy.verl.errors import SettingsError
from lightning_lab.policy.verl.settings import Setup, VerlSettings

_FSDP = {"engine": FSDPEngineConfig, "optimizer": FSDPOptimizerConfig, "checkpoint": CheckpointConfig}
_MEGATRON = {"engine": McoreEngineConfig, "optimizer": McoreOptimizerConfig, "checkpoint": McoreCheckpointConfig}
_FLOAT32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}


def check_names(settings: VerlSettings) -> None:
    """Raises `SettingsError` for names that verl does not know."""
    for group, kind in _kinds(settings).items():
        known = {field.name for field in dataclasses.fields(kind)}
        unknown = sorted(set(getattr(settings, group)) - known)
        if unknown:
            raise SettingsError(
                f"{group} has {', '.join(unknown)}, which verl's {kind.__name__} does not know. "
                f"It has: {', '.join(sorted(known))}."
            )


def worker_config(setup: Setup) -> TrainingWorkerConfig:
    """For one rank, on the machine that it runs on. Raises `SettingsError` for values that verl refuses."""
    settings = setup.settings
    kinds = _kinds(settings)
    defaults = _defaults(setup)
    try:
        made = {group: kind(**{**defaults[group], **getattr(settings, group)}) for group, kind in kinds.items()}
    except (AssertionError, TypeError, ValueError) as error:
        raise SettingsError(f"verl refuses its configuration ({type(error).__name__}: {error}).") from error
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=made["model"],
        engine_config=made["engine"],
        optimizer_config=made["optimizer"],
        checkpoint_config=made["checkpoint"],
    )


def _kinds(settings: VerlSettings) -> dict[str, Any]:
    return {"model": HFModelConfig, **(_MEGATRON if settings.strategy == "megatron" else _FSDP)}


def _defaults(setup: Setup) -> dict[str, dict[str, Any]]:
    """What differs from verl's own defaults, and why.

    Attention is torch's, over padded rows, because verl's needs flash-attn, which pip does not bring. LoRA is merged
    when weights are published, because servers load whole models. On CPUs nothing is gained from bfloat16, compiling
    or computing activations twice.
    """
    settings = setup.settings
    model: dict[str, Any] = {
        "path": str(setup.directory),
        "override_config": {"attn_implementation": "sdpa"},
        "use_remove_padding": False,
    }
    engine: dict[str, Any] = {"strategy": settings.strategy, "use_dynamic_bsz": False}
    engine["forward_only"] = setup.forward_only
    if settings.model.get("lora_rank"):
        model["lora"] = {"merge": True}
    if settings.device == "cpu":
        model["enable_gradient_checkpointing"] = False
        if settings.strategy == "fsdp2":
            engine |= {"mixed_precision": _FLOAT32, "use_torch_compile": False}
    return {"model": model, "engine": engine, "optimizer": {"lr": 0.0, "weight_decay": 0.0}, "checkpoint": {}}


def stored_dtype(config_json: str) -> str:
    """The dtype that a model directory's ``config.json`` names, which published weights are written in."""
    config: Mapping[str, Any] = json.loads(config_json)
    text = config.get("text_config") or {}
    return str(config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or "float32")
