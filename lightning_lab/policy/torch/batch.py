"""Rows of a micro-batch to tensors, and the model's log-probs of their trained tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lightning_lab.policy.base import LossRow
from lightning_lab.policy.torch.model import logits_at
from lightning_lab.records import Floats, Mask


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded rows; the flat tensors run over the T tokens with mask 1, row by row."""

    ids: Tensor
    """int64 [rows, tokens]."""
    attention: Tensor
    """int64 [rows, tokens], 1 where a row has a token."""
    row: Tensor
    """int64 [T]: which row a trained token belongs to."""
    position: Tensor
    """int64 [T]: where it is in its row; at least 1, for something must predict it."""
    old_logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    """float32 [T] each. Tokens without a finite old log-prob have weight 0."""

    @property
    def targets(self) -> Tensor:
        return self.ids[self.row, self.position]


def trained_positions(row: LossRow) -> Mask:
    """Where a row's tokens train. The first token of a row has nothing that predicts it."""
    mask = row.sample.mask.copy()
    mask[:1] = False
    return mask


def pad(rows: Sequence[LossRow], device: torch.device) -> Batch:
    """Right padding; packing would replace this function only."""
    longest = max(len(row.sample.ids) for row in rows)
    ids = np.zeros((len(rows), longest), dtype=np.int64)
    attention = np.zeros((len(rows), longest), dtype=np.int64)
    flat: list[tuple[Any, ...]] = []
    for index, row in enumerate(rows):
        length = len(row.sample.ids)
        ids[index, :length] = row.sample.ids
        attention[index, :length] = 1
        at = np.flatnonzero(trained_positions(row))
        sampler = row.sample.logprobs[at]
        old = sampler if row.old_logprobs is None else row.old_logprobs[at]
        weights = np.where(np.isfinite(old), row.token_weight, 0.0)
        flat.append((np.full(len(at), index), at, old, sampler, np.full(len(at), row.advantage), weights))
    row_of, position, old, sampler, advantages, weights = (np.concatenate(column) for column in zip(*flat, strict=True))
    return Batch(
        ids=torch.from_numpy(ids).to(device),
        attention=torch.from_numpy(attention).to(device),
        row=torch.from_numpy(row_of.astype(np.int64)).to(device),
        position=torch.from_numpy(position.astype(np.int64)).to(device),
        old_logprobs=_floats(np.nan_to_num(old, nan=0.0, posinf=0.0, neginf=0.0), device),
        sampler_logprobs=_floats(sampler, device),
        advantages=_floats(advantages, device),
        weights=_floats(weights, device),
    )


def trained_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Logits that predict the trained tokens, float32 [T, vocabulary]."""
    with logits_at(model, batch.row, batch.position - 1):
        logits: Tensor = model(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False).logits
    return logits[0].float()


def token_logprobs(logits: Tensor, targets: Tensor, *, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets [T] and entropies [T] of the distributions that predict them."""
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.set_grad_enabled(entropy_gradient):
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, targets.unsqueeze(1)).squeeze(1), entropy


def scatter(values: Floats, rows: Sequence[LossRow]) -> list[Floats]:
    """Flat numbers [T] back to arrays aligned with each row's ids; NaN where nothing trains."""
    aligned: list[Floats] = []
    start = 0
    for row in rows:
        mask = trained_positions(row)
        full = np.full(len(mask), np.nan, dtype=np.float32)
        stop = start + int(mask.sum())
        full[mask] = values[start:stop]
        start = stop
        aligned.append(full)
    return aligned


def _floats(values: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(device)
