"""The two forward passes of sampling, on top of any Hugging Face causal LM with standard attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lightning_lab.policy.torch.kv import KvSlots
from lightning_lab.policy.torch.model import cache_argument
from lightning_lab.records import Ids


class HuggingFaceForward:
    """Prefill and decode through the model's own modules."""

    def __init__(self, model: PreTrainedModel, kv: KvSlots) -> None:
        self.model, self.kv = model, kv
        self._cache = cache_argument(model)
        self._device = model.device

    def prefill(self, rows: Sequence[Ids], first_row: int) -> Tensor:
        """Read whole prompts into slots from ``first_row`` on → logits after each last token, [rows, vocabulary]."""
        longest = max(len(row) for row in rows)
        self.kv.reserve(first_row + len(rows), longest)
        self.kv.prefill(first_row)
        ids = torch.zeros((len(rows), longest), dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.from_numpy(row)
        # Right padding comes after every real token, so plain causal attention never sees it. Logits are asked for
        # at the distinct last positions only; row i then picks its own.
        last = sorted({len(row) - 1 for row in rows})
        pick = torch.tensor([last.index(len(row) - 1) for row in rows])
        logits = self._run(
            ids, torch.arange(longest).unsqueeze(0), None, logits_to_keep=torch.tensor(last, device=self._device)
        )
        return logits[torch.arange(len(rows)), pick]

    def decode(self, ids: Tensor, positions: Tensor, visible: int) -> Tensor:
        """One more token for each of the first rows: ids [rows], positions [rows] → logits [rows, vocabulary]."""
        self.kv.reserve(len(ids), visible)
        self.kv.decode(positions, visible)
        mask = torch.arange(visible, device=self._device) <= positions.unsqueeze(1)
        return self._run(ids.unsqueeze(1), positions.unsqueeze(1), mask[:, None, None, :])[:, -1]

    def _run(self, ids: Tensor, positions: Tensor, mask: Tensor | None, logits_to_keep: Tensor | int = 0) -> Tensor:
        result: Tensor = self.model(
            input_ids=ids.to(self._device),
            position_ids=positions.to(self._device),
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=logits_to_keep,
            **{self._cache: self.kv},
        ).logits
        return result
