"""Loading a Hugging Face causal LM from a directory, offline and silently."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from lightning_lab.policy.base import PolicyError


def load_model(directory: Path, *, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """The model in evaluation mode. Raises `PolicyError`."""
    if not (directory / "config.json").is_file():
        raise PolicyError(
            f"{directory} holds no model (no config.json). Give the path of a Hugging Face model directory."
        )
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, attn_implementation="sdpa", local_files_only=True
        )
    except Exception as error:
        raise PolicyError(
            f"The model in {directory} could not be loaded ({type(error).__name__}: {error}). "
            "It must be a causal LM that transformers knows, with its weights as safetensors."
        ) from error
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
    return cast(PreTrainedModel, model.to(device).eval())


def context_length(model: PreTrainedModel, asked: int | None) -> int:
    """Positions that the engine serves. Full attention equals sliding attention up to the window's width."""
    config = model.config.get_text_config()
    limits = [int(getattr(config, "max_position_embeddings", 0) or 2048)]
    window = getattr(config, "sliding_window", None)
    if window and _slides(config):
        limits.append(int(window))
    if asked is not None:
        limits.append(asked)
    return min(limits)


def _slides(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    return kinds is None or "sliding_attention" in kinds


def cache_argument(model: PreTrainedModel) -> str:
    """transformers 5.24 renamed ``past_key_values`` to ``cache``."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def weights_hash(state: dict[str, Tensor]) -> str:
    """SHA-256 over names and bytes of all weights."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
