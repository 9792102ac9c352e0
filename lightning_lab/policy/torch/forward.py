"""Reading tokens into the slots: batches of unequal rows to one forward pass, on any Hugging Face causal LM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lightning_lab.policy.torch.kv import KvSlots
from lightning_lab.policy.torch.model import cache_argument, logits_at
from lightning_lab.records import Ids


class Forward(Protocol):
    """One pass over tokens whose places in the slots are planned already."""

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, last: Tensor) -> Tensor:
        """``ids``, ``positions`` [rows, tokens]; ``mask`` [rows, 1, tokens, visible], added to attention scores;
        ``last`` [rows]: whose logits are wanted → logits [rows, vocabulary]."""
        ...


class HuggingFaceForward:
    """Through the model's own modules: works for every causal LM with standard attention."""

    def __init__(self, model: PreTrainedModel, kv: KvSlots) -> None:
        self._model, self._kv = model, kv
        self._cache = cache_argument(model)

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, last: Tensor) -> Tensor:
        rows = torch.arange(len(ids), device=ids.device)
        with logits_at(self._model, rows, last):
            logits: Tensor = self._model(
                input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=True, **{self._cache: self._kv}
            ).logits
        return logits[0]


class Reader:
    """Pads rows, builds positions and masks, and runs the forward pass."""

    def __init__(self, forward: Forward, kv: KvSlots, *, dtype: torch.dtype, device: torch.device) -> None:
        self._forward, self.kv = forward, kv
        self._dtype, self._device = dtype, device

    def read(self, rows: Sequence[Ids], offsets: Sequence[int], first_row: int) -> Tensor:
        """Read each row's tokens after its first ``offset`` ones, which its slot holds already.

        → logits after each row's last token, [rows, vocabulary].
        """
        lengths = torch.tensor([len(row) - offset for row, offset in zip(rows, offsets, strict=True)])
        longest = int(lengths.max())
        ids = torch.zeros((len(rows), longest), dtype=torch.long)
        for index, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
            ids[index, : len(row) - offset] = torch.from_numpy(row[offset:])
        # Padding is written after the row's end, where the row's next tokens overwrite it.
        positions = torch.tensor(offsets).unsqueeze(1) + torch.arange(longest)
        positions.clamp_(max=self.kv.max_length - 1)
        return self._run(ids, positions, lengths - 1, first_row)

    def step(self, ids: Tensor, positions: Tensor) -> Tensor:
        """One more token for each of the first rows: ids [rows], positions [rows] → logits [rows, vocabulary]."""
        return self._run(ids.unsqueeze(1), positions.unsqueeze(1), torch.zeros_like(ids), 0)

    def _run(self, ids: Tensor, positions: Tensor, last: Tensor, first_row: int) -> Tensor:
        visible = int(positions.max()) + 1
        positions = positions.to(self._device)
        self.kv.plan(first_row, positions, visible)
        hidden = torch.arange(visible, device=self._device) > positions.unsqueeze(2)
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, -torch.inf)
        return self._forward(ids.to(self._device), positions, mask.unsqueeze(1), last.to(self._device))
