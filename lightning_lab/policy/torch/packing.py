"""Rows of a cluster behind each other in one row of tokens, without padding and without seeing each other.

Worked example: rows of 3 and 2 tokens become ids ``[a b c d e]`` with positions ``[0 1 2 0 1]``; attention runs once on
``a b c`` and once on ``d e``. All else in a transformer looks at one token at a time. Positions alone would not do:
``d`` would still attend to ``a``. So a row's numbers depend on its own tokens only, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as nn
from torch import Tensor

from lightning_lab.policy.base import LossRow
from lightning_lab.policy.torch.batch import Batch, Cluster, SharedPrefix, flat_columns, parts, trained_positions
from lightning_lab.policy.torch.forward import Forward
from lightning_lab.policy.torch.kv import KvStore

SEGMENT_TOKENS = 12
"""What an attention call of its own costs, in tokens that could be read in its place (measured on a CPU)."""
LONG = 512
"""From here on, attention over a padded square costs more than anything that packing adds."""


class Packed(KvStore):
    """Attention by segment, each after the shared prefix."""

    def __init__(self, prefix: SharedPrefix, lengths: Sequence[int], device: torch.device) -> None:
        super().__init__()
        self._prefix, self._lengths = prefix, list(lengths)
        self._masks: list[Tensor | None] = [_behind(prefix.length, length, device) for length in lengths]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Queries [1, tokens, heads, head_dim], keys and values [1, tokens, kv_heads, head_dim] → like the queries."""
        queries, keys, values = (torch.split(block, self._lengths, dim=1) for block in (query, key, value))
        found = [
            _attended(q, *self._prefix.write(layer, k, v), mask, scale)
            for q, k, v, mask in zip(queries, keys, values, self._masks, strict=True)
        ]
        return torch.cat(found, dim=1)


def pays(cluster: Cluster, max_tokens: int | None) -> bool:
    """Whether packing is faster than padding: not for short rows of nearly the same length."""
    lengths = [_read_tokens(row) - cluster.shared for row in cluster.rows]
    if max(lengths) >= LONG:
        return True
    padded = sum(len(part) * (_read_tokens(part[-1]) - cluster.shared) for part in parts(cluster, max_tokens))
    return sum(lengths) + SEGMENT_TOKENS * len(lengths) < padded


def packs(cluster: Cluster, max_tokens: int | None) -> list[list[LossRow]]:
    """The cluster's rows, shortest first, in packs of at most ``max_tokens`` tokens (or one row)."""
    found: list[list[LossRow]] = [[]]
    room = 0
    for row in sorted(cluster.rows, key=_read_tokens):
        length = _read_tokens(row) - cluster.shared
        if found[-1] and max_tokens is not None and length > room:
            found.append([])
        room = (room if found[-1] else max_tokens or 0) - length
        found[-1].append(row)
    return found


def pack(rows: Sequence[LossRow], shared: int, device: torch.device) -> tuple[Batch, list[int]]:
    """Rows of one cluster as one row of ids [1, tokens], and the segments' lengths."""
    trained = [np.flatnonzero(trained_positions(row)) for row in rows]
    lengths = [int(at[-1]) - shared for at in trained]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    ids = np.concatenate([row.sample.ids[shared : at[-1]] for row, at in zip(rows, trained, strict=True)])
    position = np.concatenate([start + at - shared - 1 for start, at in zip(starts, trained, strict=True)])
    return (
        Batch(
            ids=torch.from_numpy(ids.astype(np.int64)[None]).to(device),
            row=torch.zeros(len(position), dtype=torch.long, device=device),
            position=torch.from_numpy(position).to(device),
            **flat_columns(rows, trained, device),
        ),
        lengths,
    )


def packed_logits(forward: Forward, prefix: SharedPrefix, batch: Batch, lengths: Sequence[int]) -> Tensor:
    """Logits that predict the trained tokens, float32 [T, vocabulary], with their gradient."""
    device = batch.ids.device
    positions = torch.cat([torch.arange(prefix.length, prefix.length + length) for length in lengths]).to(device)
    nothing = torch.empty(0, device=device)
    packed = Packed(prefix, lengths, device)
    return forward(packed, batch.ids, positions.unsqueeze(0), nothing, batch.row, batch.position).float()


def _read_tokens(row: LossRow) -> int:
    """Tokens up to the last trained one, which is predicted and never read."""
    return int(np.flatnonzero(row.sample.mask)[-1])


def _behind(before: int, tokens: int, device: torch.device) -> Tensor | None:
    """What a segment's tokens may look at, [tokens, before + tokens]; None: themselves and what stands before them."""
    if before == 0:
        return None
    return torch.ones((tokens, before + tokens), dtype=torch.bool, device=device).tril(before)


def _attended(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """One segment. Heads that share keys are a second batch dimension, so that no key is copied."""
    _, tokens, heads, size = query.shape
    shared = keys.shape[2]
    stacked = query.view(tokens, shared, heads // shared, size).permute(1, 2, 0, 3)
    keys, values = (
        block[0].transpose(0, 1).unsqueeze(1).expand(-1, heads // shared, -1, -1) for block in (keys, values)
    )
    attended = nn.scaled_dot_product_attention(
        stacked, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return attended.permute(2, 0, 1, 3).reshape(1, tokens, heads, size)
