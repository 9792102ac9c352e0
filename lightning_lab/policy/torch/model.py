"""Loading a Hugging Face causal LM from a directory, offline and silently."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
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
    try:
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, attn_implementation="sdpa", local_files_only=True
            )
    except Exception as error:
        raise PolicyError(
            f"The model in {directory} could not be loaded ({type(error).__name__}: {error}). "
            "It must be a causal LM that transformers knows, with its weights as safetensors."
        ) from error
    return cast(PreTrainedModel, model.to(device).eval())


@contextmanager
def quiet() -> Iterator[None]:
    """transformers draws no progress bars into the notebook."""
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            transformers_logging.enable_progress_bar()


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


def kv_bytes_per_token(model: PreTrainedModel) -> int:
    """What keys and values of one token take in all layers."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * head_dim * model.dtype.itemsize)


def _slides(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    return kinds is None or "sliding_attention" in kinds


def cache_argument(model: PreTrainedModel) -> str:
    """transformers 5.24 renamed ``past_key_values`` to ``cache``."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@contextmanager
def logits_at(model: PreTrainedModel, rows: Tensor, positions: Tensor) -> Iterator[None]:
    """While open, forward passes compute logits at (rows[i], positions[i]) only: [1, n, vocabulary].

    The output layer gets just these hidden states; whatever a model does to its logits afterwards stays in place.
    """

    def pick(_module: torch.nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (arguments[0][rows, positions].unsqueeze(0),)

    handle = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def weights_hash(state: dict[str, Tensor]) -> str:
    """SHA-256 over names and bytes of all weights."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
