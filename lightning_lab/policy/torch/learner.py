"""One optimiser step at a time on the weights that the engine samples from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lightning_lab.policy.base import LossRow, UpdateResult
from lightning_lab.policy.torch.batch import (
    Batch,
    Cluster,
    SharedPrefix,
    clusters,
    make_batch,
    parts,
    read_prefix,
    token_logprobs,
    trained_logits,
)
from lightning_lab.policy.torch.forward import Forward
from lightning_lab.policy.torch.learner_options import StepOptions
from lightning_lab.policy.torch.llama import LlamaForward, best_forward
from lightning_lab.policy.torch.model import context_length, load_model
from lightning_lab.policy.torch.objective import Objective, check_ids, check_loss, objective
from lightning_lab.policy.torch.packing import pack, packed_logits, packs, pays
from lightning_lab.policy.torch.report import COLUMNS, update_result
from lightning_lab.records import Floats

CPU_TOKENS = 1024
"""Tokens of one forward and backward pass on a CPU: activations that stay in its caches are several times faster."""


class TorchLearner:
    """AdamW on a model's parameters. The caller keeps the engine from stepping meanwhile."""

    def __init__(self, model: PreTrainedModel, forward: Forward) -> None:
        """``forward`` runs on the model's own parameters. Only the fast pass can read packed rows."""
        self._model, self._forward = model, forward
        self._reference: Forward | None = None
        self._part_tokens = CPU_TOKENS if model.device.type == "cpu" else None
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self._parameters, lr=0.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        """One step: gradients summed over the micro-batches, clipped by their norm, applied.

        A gradient that is not finite changes nothing and is reported as ``skipped`` = 1. Raises `PolicyError` for an
        unknown loss, for options that cannot work and for ids outside the vocabulary.
        """
        check_loss(loss)
        own, loss_options = StepOptions.split(options)
        check_ids(micro_batches, int(self._model.get_input_embeddings().weight.shape[0]))
        self.optimizer.zero_grad(set_to_none=True)
        columns: dict[str, list[Floats]] = {name: [] for name in COLUMNS}
        masked = dict.fromkeys(own.corrections, 0)
        done: list[LossRow] = []
        total = 0.0
        for cluster in (cluster for rows in micro_batches for cluster in clusters(rows)):
            prefix, reference = self._read(cluster, own)
            packed = isinstance(self._forward, LlamaForward) and pays(cluster, self._part_tokens)
            for part in (packs if packed else parts)(cluster, self._part_tokens):
                found = _found(*self._logits(prefix, reference, part, packed), own, loss, loss_options)
                torch.autograd.backward(found.value)
                total += float(found.value.detach())
                for name, column in found.columns.items():
                    columns[name].append(_numpy(column))
                for name, tokens in found.masked.items():
                    masked[name] += tokens
                done += part
            prefix.backward()
        applied, norm = self._apply(own, learning_rate)
        return update_result(
            {name: np.concatenate(found) if found else np.zeros(0, np.float32) for name, found in columns.items()},
            done,
            [row for rows in micro_batches for row in rows],
            masked,
            token_stats=own.token_stats,
            loss=total,
            grad_norm=norm,
            skipped=0.0 if applied else 1.0,
            learning_rate=learning_rate,
        )

    def check(self, rows: Sequence[LossRow]) -> None:
        """Raises `SampleError` for ids without an embedding."""
        check_ids([rows], int(self._model.get_input_embeddings().weight.shape[0]))

    def _read(self, cluster: Cluster, own: StepOptions) -> tuple[SharedPrefix, SharedPrefix | None]:
        """The cluster's prefix as the learner reads it, and as the reference does where it is asked."""
        device, dtype = self._model.device, self._model.dtype
        prefix = read_prefix(self._forward, cluster, device, dtype)
        if not own.kl_coef:
            return prefix, None
        with torch.no_grad():
            return prefix, read_prefix(self._reference_forward(), cluster, device, dtype)

    def _reference_forward(self) -> Forward:
        """The model as it was loaded, read again from its directory at the first step that asks for it."""
        if self._reference is None:
            model = load_model(Path(self._model.name_or_path), device=str(self._model.device), dtype=self._model.dtype)
            self._reference = best_forward(model.requires_grad_(False), context_length(model, None))
        return self._reference

    def _logits(
        self, prefix: SharedPrefix, reference: SharedPrefix | None, rows: Sequence[LossRow], packed: bool
    ) -> tuple[Batch, Tensor, Tensor | None]:
        """The batch, the learner's logits and, where there is one, the reference's."""
        device, dtype = self._model.device, self._model.dtype
        batch, lengths = pack(rows, prefix.length, device) if packed else (make_batch(rows, prefix.length, device), [])

        def logits(forward: Forward, read: SharedPrefix) -> Tensor:
            if packed:
                return packed_logits(forward, read, batch, lengths)
            return trained_logits(forward, read, batch, dtype)

        if reference is None:
            return batch, logits(self._forward, prefix), None
        with torch.no_grad():
            expected = logits(self._reference_forward(), reference)
        return batch, logits(self._forward, prefix), expected

    def _apply(self, own: StepOptions, learning_rate: float) -> tuple[bool, float]:
        """Clip and step → (whether a step was made, gradient norm before clipping)."""
        touched = [parameter for parameter in self._parameters if parameter.grad is not None]
        if not touched:
            return True, 0.0
        norm = float(torch.nn.utils.clip_grad_norm_(touched, own.max_grad_norm))
        finite = bool(np.isfinite(norm))
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"], group["weight_decay"] = learning_rate, own.weight_decay
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return finite, norm


def _found(
    batch: Batch,
    logits: Tensor,
    known: Tensor | None,
    own: StepOptions,
    loss: str,
    loss_options: Mapping[str, Any],
) -> Objective:
    """The objective of some rows. ``known``: the reference's logits."""
    logprobs, entropy = token_logprobs(logits / own.temperature, batch.targets, entropy_gradient=own.entropy_coef != 0)
    reference = None
    if known is not None:
        reference, _ = token_logprobs(known / own.temperature, batch.targets, entropy_gradient=False)
    return objective(batch, logprobs, entropy, reference, own, loss, loss_options)


def _numpy(values: Tensor) -> Floats:
    return np.asarray(values.detach().float().cpu().numpy())
