"""Checkpoints: a Hugging Face model directory plus optimiser state, as safetensors and JSON only.

``config.json``, ``model.safetensors``, tokenizer files: usable as a model directory by itself.
``optimizer.safetensors``: ``<parameter index>.<exp_avg | exp_avg_sq | step>``. ``policy.json``: everything else.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.torch.model import quiet
from lightning_lab.tokens import ChatCodec

FORMAT = 1
_STATE, _OPTIMIZER = "policy.json", "optimizer.safetensors"


class CheckpointError(PolicyError):
    """A checkpoint is missing, damaged, or of another model."""


def architecture_hash(model: PreTrainedModel, codec: ChatCodec) -> str:
    """Equal for checkpoints that fit into each other: names and shapes of the weights, and the tokenizer."""
    shapes = sorted((name, list(tensor.shape)) for name, tensor in model.state_dict().items())
    text = json.dumps([shapes, codec.fingerprint()["tokenizer"]])
    return hashlib.sha256(text.encode()).hexdigest()


def save_checkpoint(
    directory: Path,
    model: PreTrainedModel,
    codec: ChatCodec,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
) -> None:
    """Written beside its place and renamed into it: a checkpoint is there whole or not at all."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = directory.parent / f".{directory.name}.{os.getpid()}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        with quiet():
            model.save_pretrained(unfinished)
        codec.save(unfinished)
        save_file(_moments(optimizer), unfinished / _OPTIMIZER)
        written = {"format": FORMAT, "architecture": architecture_hash(model, codec), **state}
        (unfinished / _STATE).write_text(json.dumps(written, indent=1), encoding="utf-8")
        _replace(unfinished, directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def load_checkpoint(
    directory: Path, model: PreTrainedModel, codec: ChatCodec, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Fill model and optimiser in place → the state that was saved with them. Raises `CheckpointError`."""
    path = directory / _STATE
    if not path.is_file():
        raise CheckpointError(
            f"{directory} is no checkpoint of a policy (it has no {_STATE}). Give one that save() made."
        )
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        weights = load_weights(directory)
        moments = load_file(directory / _OPTIMIZER)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"The checkpoint in {directory} is damaged ({error}). Use an earlier one.") from error
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"The checkpoint in {directory} has format {state.get('format')}, this version reads {FORMAT}. "
            "Open it with the version of lightning-lab that wrote it."
        )
    if state.get("architecture") != architecture_hash(model, codec):
        raise CheckpointError(
            f"The checkpoint in {directory} belongs to another model or tokenizer than this policy's. "
            "Start the policy with the model that the run was made with."
        )
    fill(model, weights, f"The checkpoint in {directory}")
    _fill_moments(optimizer, moments)
    return state


def load_weights(directory: Path) -> dict[str, Tensor]:
    """All ``model*.safetensors`` of a directory. Raises OSError, ValueError or SafetensorError."""
    weights: dict[str, Tensor] = {}
    for file in sorted(directory.glob("model*.safetensors")):
        weights.update(load_file(file))
    if not weights:
        raise ValueError("no weights")
    return weights


@torch.no_grad()
def fill(model: PreTrainedModel, weights: Mapping[str, Tensor], what: str) -> None:
    """Copy into the parameters themselves, which the engine reads. Tied weights are stored once.

    Raises `CheckpointError`, about ``what``, where one is missing.
    """
    targets = dict(model.named_parameters()) | dict(model.named_buffers())
    missing = [name for name, _ in model.named_parameters() if name not in weights]
    if missing:
        raise CheckpointError(f"{what} lacks {missing[0]}. Use an earlier checkpoint.")
    for name, tensor in weights.items():
        if name in targets:
            targets[name].copy_(tensor)


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in state.items()
        for name, value in values.items()
    }


def _fill_moments(optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    fresh = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in moments.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": fresh["param_groups"]})


def _replace(source: Path, target: Path) -> None:
    """Directories cannot be renamed over full ones: an old checkpoint steps aside first."""
    old = target.parent / f".{target.name}.{os.getpid()}.old"
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)
