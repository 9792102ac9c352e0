"""Key-value slots: one preallocated block per layer, in which the running rows are always the first ones.

Worked example: rows A B C run in slots 0 1 2. B ends: C's keys and values move to slot 1, and the next decode step
reads the contiguous view ``[:2]``; nothing is gathered or copied per step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

Span = list[tuple[Tensor, Tensor]]
"""Keys and values of one row's first positions, [length, kv_heads, head_dim] each, per layer."""


class KvStore(Cache):  # type: ignore[misc]
    """Where a forward pass puts its keys and values, and what it may attend to instead."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of this pass, [rows, tokens, kv_heads, head_dim] → those it attends to, in that layout."""
        raise NotImplementedError

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """The same in the layout of transformers: [rows, kv_heads, tokens, head_dim]."""
        keys, values = self.write(layer_idx, key_states.transpose(1, 2), value_states.transpose(1, 2))
        return keys.transpose(1, 2), values.transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions and masks are always given to the model, so it never needs this."""
        return 0


class KvSlots(KvStore):
    """Keys and values, [rows, length, kv_heads, head_dim] per layer. Blocks grow as they are needed.

    Call `plan` before each forward pass: it says where the pass writes and what it may read.
    """

    def __init__(self, layers: int, *, max_rows: int, max_length: int, max_tokens: int | None = None) -> None:
        """``max_tokens``: rows · length that may be held, unless a single row needs more."""
        super().__init__()
        self.max_rows, self.max_length = max_rows, max_length
        self.max_tokens = max_tokens or max_rows * max_length
        self.rows = self.length = 0
        self.held = 0
        """Length of the longest row that must survive; whoever runs rows keeps it up to date."""
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self._first = self._visible = 0
        self._flat = torch.empty(0, dtype=torch.long)

    def plan(self, first_row: int, positions: Tensor, visible: int) -> None:
        """The next pass writes ``positions`` [rows, tokens] of the rows from ``first_row`` on; it sees ``visible``."""
        count = len(positions)
        self._reserve(first_row + count, max(visible, self.held))
        rows = torch.arange(first_row, first_row + count, device=positions.device).unsqueeze(1)
        self._flat = (rows * self.length + positions).flatten()
        self._first, self._visible = first_row, visible

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store as planned → everything visible to these rows."""
        key_block, value_block = self._block(self.keys, keys, layer), self._block(self.values, values, layer)
        key_block.flatten(0, 1).index_copy_(0, self._flat, keys.flatten(0, 1))
        value_block.flatten(0, 1).index_copy_(0, self._flat, values.flatten(0, 1))
        rows = slice(self._first, self._first + len(keys))
        return key_block[rows, : self._visible], value_block[rows, : self._visible]

    def move(self, source: int, target: int, length: int) -> None:
        """Row ``source`` takes the slot ``target``."""
        for block in (*self.keys, *self.values):
            if block is not None:
                block[target, :length] = block[source, :length]

    def take(self, row: int, length: int) -> Span:
        """A copy of a row's first positions."""
        pairs = zip(self.keys, self.values, strict=True)
        return [(k[row, :length].clone(), v[row, :length].clone()) for k, v in pairs if k is not None and v is not None]

    def put(self, row: int, span: Span, length: int) -> None:
        """Fill a row's first positions from a copy."""
        self._reserve(row + 1, max(length, self.held))
        for layer, (keys, values) in enumerate(span):
            for block, source in ((self.keys[layer], keys), (self.values[layer], values)):
                if block is not None:
                    block[row, :length] = source[:length]

    def clear(self) -> None:
        """Zero everything: values that are not finite would spread even from hidden positions."""
        for block in (*self.keys, *self.values):
            if block is not None:
                block.zero_()

    def fits(self, rows: int, length: int) -> bool:
        """Whether so many rows may run at this length."""
        return rows <= 1 or (rows <= self.max_rows and rows * length <= self.max_tokens)

    def _reserve(self, rows: int, length: int) -> None:
        """Grows by half at least, so that growth stays rare; gives back what is too much in the other direction."""
        if rows <= self.rows and length <= self.length:
            return
        roomy_rows = self.rows if rows <= self.rows else min(self.max_rows, max(rows, self.rows * 2, 4))
        roomy_length = self.length
        if length > self.length:
            roomy_length = min(self.max_length, max(length, self.length + self.length // 2, 128))
        if roomy_rows * roomy_length <= self.max_tokens:
            rows, length = roomy_rows, roomy_length
        kept_rows, kept_length = min(rows, self.rows), min(length, self.length)
        for blocks in (self.keys, self.values):
            for layer, block in enumerate(blocks):
                if block is not None:
                    other = block.new_zeros((rows, length, *block.shape[2:]))
                    other[:kept_rows, :kept_length] = block[:kept_rows, :kept_length]
                    blocks[layer] = other
        self.rows, self.length = rows, length

    def _block(self, blocks: list[Tensor | None], like: Tensor, layer: int) -> Tensor:
        block = blocks[layer]
        if block is None:
            block = like.new_zeros((self.rows, self.length, *like.shape[2:]))
            blocks[layer] = block
        return block
