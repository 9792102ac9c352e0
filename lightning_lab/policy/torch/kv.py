"""Key-value slots: one preallocated block per layer, in which the running rows are always the first ones.

Worked example: rows A B C run in slots 0 1 2. B ends: C's keys and values move to slot 1, and the next decode step
reads the contiguous view ``[:2]``; nothing is gathered or copied per step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache


class KvSlots(Cache):  # type: ignore[misc]
    """Cache of shape [rows, length, kv_heads, head_dim] per layer, written at one position per row.

    Before each forward pass, say what it is: `prefill` (new rows, right-padded, each starting at position 0) or
    `decode` (one token for each of the first rows).
    """

    def __init__(self, layers: int, *, max_rows: int, max_length: int) -> None:
        super().__init__(layers=[])
        self.max_rows, self.max_length = max_rows, max_length
        self.rows = self.length = 0
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self._first = 0
        self._flat: Tensor | None = None
        self._visible = 0

    def reserve(self, rows: int, length: int) -> None:
        """Make room, keeping what is written. Grows by half at least, so that growth stays rare."""
        if rows <= self.rows and length <= self.length:
            return
        new_rows = self.rows if rows <= self.rows else min(self.max_rows, max(rows, self.rows * 2, 4))
        grown = min(self.max_length, max(length, self.length + self.length // 2, 128))
        new_length = self.length if length <= self.length else grown
        for blocks in (self.keys, self.values):
            for index, block in enumerate(blocks):
                if block is not None:
                    wider = block.new_zeros((new_rows, new_length, *block.shape[2:]))
                    wider[: self.rows, : self.length] = block
                    blocks[index] = wider
        self.rows, self.length = new_rows, new_length

    def prefill(self, first_row: int) -> None:
        """The next forward pass writes rows from ``first_row`` on, from position 0."""
        self._first, self._flat = first_row, None

    def decode(self, positions: Tensor, visible: int) -> None:
        """The next forward pass writes row i at ``positions[i]`` ([rows]) and reads ``visible`` positions."""
        self._flat = torch.arange(len(positions), device=positions.device) * self.length + positions
        self._visible = visible

    def move(self, source: int, target: int, length: int) -> None:
        """Row ``source`` takes the slot ``target``."""
        for blocks in (self.keys, self.values):
            for block in blocks:
                if block is not None:
                    block[target, :length] = block[source, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store [rows, kv_heads, tokens, head_dim] and return what this pass may attend to."""
        keys = self._block(self.keys, key_states, layer_idx)
        values = self._block(self.values, value_states, layer_idx)
        if self._flat is None:
            rows, _, tokens, _ = key_states.shape
            keys[self._first : self._first + rows, :tokens] = key_states.transpose(1, 2)
            values[self._first : self._first + rows, :tokens] = value_states.transpose(1, 2)
            return key_states, value_states
        rows = len(self._flat)
        keys.flatten(0, 1).index_copy_(0, self._flat, key_states.squeeze(2))
        values.flatten(0, 1).index_copy_(0, self._flat, value_states.squeeze(2))
        return keys[:rows, : self._visible].transpose(1, 2), values[:rows, : self._visible].transpose(1, 2)

    def _block(self, blocks: list[Tensor | None], like: Tensor, layer: int) -> Tensor:
        block = blocks[layer]
        if block is None:
            block = like.new_zeros((self.rows, self.length, like.shape[1], like.shape[3]))
            blocks[layer] = block
        return block

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are always given to the model, so it never needs this."""
        return 0
