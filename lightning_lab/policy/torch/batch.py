"""Rows of a micro-batch to tensors. Rows that begin alike share one reading of their beginning.

Worked example: 32 samples of one agent start with the same 200 tokens of instructions and tools and go on for 100
each. They become one prefix [1, 200] and a batch [32, 100] that attends to it: 3,400 tokens instead of 9,600, and
exactly the same gradient, because every row's gradient flows back into the one prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_lab.policy.base import LossRow
from lightning_lab.policy.torch.forward import Forward, causal_mask
from lightning_lab.policy.torch.kv import KvStore
from lightning_lab.policy.torch.prefix import common_prefix
from lightning_lab.records import Floats, Mask

_SHARED = 64
"""Rows share a prefix if at least so many tokens are equal."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A shared prefix and right-padded rows after it; flat tensors run over the T trained tokens, row by row."""

    prefix: Tensor
    """int64 [P]."""
    ids: Tensor
    """int64 [rows, tokens]: what follows the prefix, up to each row's last trained token."""
    row: Tensor
    position: Tensor
    """int64 [T]: where in ``ids`` the trained tokens are predicted from."""
    targets: Tensor
    """int64 [T]: the trained tokens."""
    old_logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    """float32 [T] each. Tokens without a finite old log-prob have weight 0."""


class SharedPrefix(KvStore):
    """Keeps the keys and values of the first pass, with their gradient, and shows them to all rows of the next."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if layer not in self._kept:
            self._kept[layer] = (keys, values)
            return keys, values
        shared_keys, shared_values = self._kept[layer]
        rows = len(keys)
        return (
            torch.cat((shared_keys.expand(rows, -1, -1, -1), keys), dim=1),
            torch.cat((shared_values.expand(rows, -1, -1, -1), values), dim=1),
        )


def trained_positions(row: LossRow) -> Mask:
    """Where a row's tokens train. The first token of a row has nothing that predicts it."""
    mask = row.sample.mask.copy()
    mask[:1] = False
    return mask


def alike(rows: Sequence[LossRow]) -> list[list[int]]:
    """Indices of rows that train anything, in clusters that can share a prefix."""
    clusters: dict[bytes, list[int]] = {}
    for index, row in enumerate(rows):
        if trained_positions(row).any():
            clusters.setdefault(row.sample.ids[:_SHARED].tobytes(), []).append(index)
    return list(clusters.values())


def make_batch(rows: Sequence[LossRow], device: torch.device) -> Batch:
    """Rows of one cluster, each with at least one trained token."""
    trained = [np.flatnonzero(trained_positions(row)) for row in rows]
    shared = _shared_length(rows, trained)
    longest = max(int(at[-1]) for at in trained) - shared
    ids = np.zeros((len(rows), longest), dtype=np.int64)
    for index, (row, at) in enumerate(zip(rows, trained, strict=True)):
        # The last trained token is only predicted, never read, and nothing after it matters.
        ids[index, : at[-1] - shared] = row.sample.ids[shared : at[-1]]
    sampler = np.concatenate([row.sample.logprobs[at] for row, at in zip(rows, trained, strict=True)])
    old = np.concatenate([_old_logprobs(row)[at] for row, at in zip(rows, trained, strict=True)])
    counts = [len(at) for at in trained]
    weights = np.where(np.isfinite(old), np.repeat([row.token_weight for row in rows], counts), 0.0)

    def tensor(values: object, dtype: type) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=dtype)).to(device)

    return Batch(
        prefix=tensor(rows[0].sample.ids[:shared], np.int64),
        ids=tensor(ids, np.int64),
        row=tensor(np.repeat(np.arange(len(rows)), counts), np.int64),
        position=tensor(np.concatenate(trained) - shared - 1, np.int64),
        targets=tensor(np.concatenate([row.sample.ids[at] for row, at in zip(rows, trained, strict=True)]), np.int64),
        old_logprobs=tensor(np.nan_to_num(old, nan=0.0, posinf=0.0, neginf=0.0), np.float32),
        sampler_logprobs=tensor(sampler, np.float32),
        advantages=tensor(np.repeat([row.advantage for row in rows], counts), np.float32),
        weights=tensor(weights, np.float32),
    )


def trained_logits(forward: Forward, batch: Batch, dtype: torch.dtype) -> Tensor:
    """Logits that predict the trained tokens, float32 [T, vocabulary], with their gradient."""
    kv = SharedPrefix()
    shared = len(batch.prefix)
    device = batch.ids.device
    if shared:
        positions = torch.arange(shared, device=device).unsqueeze(0)
        nowhere = torch.zeros(0, dtype=torch.long, device=device)
        forward(kv, batch.prefix.unsqueeze(0), positions, causal_mask(positions, shared, dtype), nowhere, nowhere)
    rows, tokens = batch.ids.shape
    positions = torch.arange(shared, shared + tokens, device=device).unsqueeze(0).expand(rows, -1)
    mask = causal_mask(positions, shared + tokens, dtype)
    return forward(kv, batch.ids, positions, mask, batch.row, batch.position).float()


def token_logprobs(logits: Tensor, targets: Tensor, *, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets [T] and entropies [T] of the distributions that predict them."""
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.set_grad_enabled(entropy_gradient):
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, targets.unsqueeze(1)).squeeze(1), entropy


def split(values: Floats, rows: Sequence[LossRow]) -> list[Floats]:
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


def _shared_length(rows: Sequence[LossRow], trained: Sequence[npt.NDArray[np.intp]]) -> int:
    """Common prefix of all rows that ends before anything trained is predicted; 0 where sharing does not pay."""
    if len(rows) < 2:
        return 0
    first = rows[0].sample.ids
    shared = min(common_prefix(first, row.sample.ids) for row in rows[1:])
    shared = min(shared, *(int(at[0]) - 1 for at in trained))
    return shared if shared >= _SHARED else 0


def _old_logprobs(row: LossRow) -> Floats:
    return row.sample.logprobs if row.old_logprobs is None else row.old_logprobs
