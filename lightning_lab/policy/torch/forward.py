"""Reading tokens into the slots: batches of unequal rows to one forward pass, on any Hugging Face causal LM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lightning_lab.policy.torch.kv import KvSlots, KvStore
from lightning_lab.policy.torch.model import cache_argument, logits_at
from lightning_lab.records import Ids


class Forward(Protocol):
    """One pass over tokens, for sampling and for learning alike."""

    def __call__(self, kv: KvStore, ids: Tensor, positions: Tensor, mask: Tensor, rows: Tensor, at: Tensor) -> Tensor:
        """``ids``, ``positions`` [rows, tokens]; ``mask`` [rows, 1, tokens, visible], added to attention scores.

        → logits at (rows[i], at[i]), [n, vocabulary].
        """
        ...


class HuggingFaceForward:
    """Through the model's own modules: works for every causal LM with standard attention."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._cache = cache_argument(model)

    def __call__(self, kv: KvStore, ids: Tensor, positions: Tensor, mask: Tensor, rows: Tensor, at: Tensor) -> Tensor:
        with logits_at(self._model, rows, at):
            logits: Tensor = self._model(
                input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=True, **{self._cache: kv}
            ).logits
        return logits[0]


def causal_mask(positions: Tensor, visible: int, dtype: torch.dtype) -> Tensor:
    """[rows, 1, tokens, visible]: 0 where a token at its position may look, else -inf."""
    hidden = torch.arange(visible, device=positions.device) > positions.unsqueeze(2)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(hidden, -torch.inf).unsqueeze(1)


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
        mask = causal_mask(positions, visible, self._dtype)
        rows = torch.arange(len(ids), device=self._device)
        return self._forward(self.kv, ids.to(self._device), positions, mask, rows, last.to(self._device))
