"""Rows of a micro-batch as verl reads them: nested tensors in a TensorDict, and the tokens that train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict
from torch import Tensor

from lightning_lab.policy.base import LossRow
from lightning_lab.policy.torch.batch import flat_columns, trained_positions
from lightning_lab.policy.torch.learner_options import StepOptions
from lightning_lab.policy.torch.objective import Objective, Tokens, objective

_EMPTY = np.zeros(2, np.int32)
"""Stands for the rows of a micro-batch that has none: the ranks go through their passes in lockstep."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """``data`` for verl; ``tokens`` for the objective; ``rows`` are those that train, in the order of ``tokens``."""

    data: TensorDict
    tokens: Tokens | None
    """None where nothing trains."""
    rows: Sequence[LossRow]


def micro_batch(rows: Sequence[LossRow], temperature: float, device: torch.device, entropy: bool = True) -> MicroBatch:
    """``loss_mask`` marks the places from which a trained token is predicted: one before the token itself."""
    training = [row for row in rows if trained_positions(row).any()]
    trained = [np.flatnonzero(trained_positions(row)) for row in training]
    ids = [row.sample.ids[: at[-1] + 1] for row, at in zip(training, trained, strict=True)] or [_EMPTY]
    places = [np.zeros(len(row_ids), np.int64) for row_ids in ids]
    for place, at in zip(places, trained, strict=False):
        place[at - 1] = 1
    data = TensorDict(
        {
            "input_ids": _nested(ids),
            "position_ids": _nested([np.arange(len(row_ids)) for row_ids in ids]),
            "loss_mask": _nested(places),
        },
        batch_size=[len(ids)],
    )
    settings = {
        "temperature": temperature,
        "calculate_entropy": entropy,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": len(ids),
    }
    for name, value in settings.items():
        data[name] = NonTensorData(value)
    tokens = Tokens(**flat_columns(training, trained, device)) if training else None
    return MicroBatch(data, tokens, training)


class RowsLoss:
    """verl's loss function of one micro-batch. Remembers what it found about each token."""

    def __init__(
        self,
        batch: MicroBatch,
        reference: Tensor | None,
        own: StepOptions,
        loss: str,
        loss_options: Mapping[str, Any],
    ) -> None:
        """``reference``: its log-probs [T], or None for no KL."""
        self._batch, self._reference = batch, reference
        self._own, self._loss, self._loss_options = own, loss, loss_options
        self.found: Objective | None = None

    def __call__(
        self, model_output: Mapping[str, Tensor], data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """verl averages gradients over the ranks, and an objective is a sum: so it is scaled by their number."""
        logprobs = at_places(model_output["log_probs"], data)
        if self._batch.tokens is None:
            return logprobs.sum(), {}
        entropy = at_places(model_output["entropy"], data)
        found = objective(
            self._batch.tokens,
            logprobs,
            entropy if self._own.entropy_coef else entropy.detach(),
            self._reference,
            self._own,
            self._loss,
            self._loss_options,
        )
        self.found = found
        return found.value * data["dp_size"], {}


def at_places(nested: Tensor, data: TensorDict) -> Tensor:
    """Numbers of every token → those of the trained tokens, float32 [T]."""
    return nested.values().float()[data["loss_mask"].values().bool()]


def _nested(rows: Sequence[Any]) -> Tensor:
    return torch.nested.as_nested_tensor(
        [torch.from_numpy(np.asarray(row, np.int64)) for row in rows], layout=torch.jagged
    )
