"""One optimiser step at a time on the weights that the engine samples from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lightning_lab.algorithms.correction import correction_factors
from lightning_lab.algorithms.kl import reference_kl
from lightning_lab.algorithms.losses import LOSSES
from lightning_lab.algorithms.metrics import ratio_metrics, rollout_weights, weight_metrics
from lightning_lab.policy.base import LossRow, PolicyError, TokenStats, UpdateResult
from lightning_lab.policy.torch.batch import (
    Batch,
    Cluster,
    SharedPrefix,
    clusters,
    make_batch,
    parts,
    read_prefix,
    split,
    token_logprobs,
    trained_logits,
    trained_positions,
)
from lightning_lab.policy.torch.forward import Forward
from lightning_lab.policy.torch.learner_options import StepOptions
from lightning_lab.policy.torch.llama import LlamaForward, best_forward
from lightning_lab.policy.torch.model import context_length, load_model
from lightning_lab.policy.torch.packing import pack, packed_logits, packs, pays
from lightning_lab.records import Floats

CPU_TOKENS = 1024
"""Tokens of one forward and backward pass on a CPU: activations that stay in its caches are several times faster."""
_STATS = ("entropy", "logprobs", "ratio", "clipped", "loss")
_COLUMNS = (*_STATS, "sampler_gap", "effective_weight", "kl")


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
        if loss not in LOSSES:
            raise PolicyError(f"There is no loss {loss!r}. Use one of: {', '.join(sorted(LOSSES))}.")
        own, loss_options = StepOptions.split(options)
        self._check_ids(micro_batches)
        self.optimizer.zero_grad(set_to_none=True)
        columns: dict[str, list[Floats]] = {name: [] for name in _COLUMNS}
        masked = dict.fromkeys(own.corrections, 0)
        done: list[LossRow] = []
        total = 0.0
        for cluster in (cluster for rows in micro_batches for cluster in clusters(rows)):
            prefix, reference = self._read(cluster, own)
            packed = isinstance(self._forward, LlamaForward) and pays(cluster, self._part_tokens)
            for part in (packs if packed else parts)(cluster, self._part_tokens):
                read = self._logits(prefix, reference, part, packed)
                total += _accumulate(*read, loss, loss_options, own, columns, masked)
                done += part
            prefix.backward()
        applied, norm = self._apply(own, learning_rate)
        flat = {name: np.concatenate(found) if found else np.zeros(0, np.float32) for name, found in columns.items()}
        shares = _rollout_weights(flat, done)
        metrics = {**_metrics(flat, masked), **weight_metrics(shares)}
        metrics.update(loss=total, grad_norm=norm, skipped=0.0 if applied else 1.0, learning_rate=learning_rate)
        if not own.token_stats:
            return UpdateResult(metrics=metrics, rollout_weights=shares)
        known = _token_stats(flat, done)
        return UpdateResult(
            metrics=metrics,
            tokens=[known.get(id(row)) or _nothing(row) for rows in micro_batches for row in rows],
            rollout_weights=shares,
        )

    def _check_ids(self, micro_batches: Sequence[Sequence[LossRow]]) -> None:
        """An id without an embedding would read foreign memory or end the process."""
        vocabulary = int(self._model.get_input_embeddings().weight.shape[0])
        for row in (row for rows in micro_batches for row in rows):
            ids = row.sample.ids
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
                raise PolicyError(
                    f"A sample of rollout {row.sample.rollout_id} has ids from {ids.min()} to {ids.max()}; the model "
                    f"knows 0 to {vocabulary - 1}. It was sampled by a model with another vocabulary."
                )

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


def _accumulate(
    batch: Batch,
    logits: Tensor,
    known: Tensor | None,
    loss: str,
    loss_options: Mapping[str, Any],
    own: StepOptions,
    columns: Mapping[str, list[Floats]],
    masked: dict[str, int],
) -> float:
    """Add the gradient of some rows → their loss. ``known``: the reference's logits."""
    logprobs, entropy = token_logprobs(logits / own.temperature, batch.targets, entropy_gradient=own.entropy_coef != 0)
    factors, fallen = correction_factors(
        logprobs, batch.sampler_logprobs, batch.weights, batch.sequences, own.corrections
    )
    old = batch.old_logprobs if own.old == "rollout" else logprobs.detach()
    summed, stats = LOSSES[loss](
        logprobs, old, batch.advantages, batch.weights, batch.sequences, factors, **loss_options
    )
    if own.entropy_coef:
        summed = summed - own.entropy_coef * (batch.weights * entropy).sum()
    kl = torch.zeros_like(logprobs)
    if known is not None:
        expected, _ = token_logprobs(known / own.temperature, batch.targets, entropy_gradient=False)
        kl = reference_kl(logprobs, expected, batch.weights, own.kl_estimator)
        summed = summed + own.kl_coef * (batch.weights * kl).sum()
    torch.autograd.backward(summed)
    for name, tokens in fallen.items():
        masked[name] += int(tokens.sum())
    stats = {**stats, "entropy": entropy, "logprobs": logprobs, "sampler_gap": logprobs - batch.sampler_logprobs}
    stats |= {"effective_weight": batch.weights * factors, "kl": kl}
    for name, found in columns.items():
        found.append(_numpy(stats[name]))
    return float(summed.detach())


def _rollout_weights(flat: Mapping[str, Floats], rows: Sequence[LossRow]) -> dict[str, float]:
    owners = [row.sample.rollout_id for row in rows for _ in range(int(trained_positions(row).sum()))]
    return rollout_weights(owners, flat["effective_weight"])


def _metrics(flat: Mapping[str, Floats], masked: Mapping[str, int]) -> dict[str, float]:
    """Token means over everything that trains, by the names of the field."""
    gap = np.abs(flat["sampler_gap"])
    count = len(flat["ratio"])
    return {
        "entropy": float(flat["entropy"].mean()) if count else 0.0,
        **ratio_metrics(flat["ratio"], flat["clipped"]),
        "tokens": float(count),
        "logprob_diff_max": float(np.nanmax(gap)) if np.isfinite(gap).any() else 0.0,
        "reference_kl": float(flat["kl"].mean()) if count else 0.0,
        **{f"masked_{name}": float(tokens) for name, tokens in masked.items()},
    }


def _token_stats(flat: Mapping[str, Floats], rows: Sequence[LossRow]) -> dict[int, TokenStats]:
    """By the identity of the row: rows are computed in another order than they were given."""
    columns = [split(flat[name], rows) for name in _STATS]
    stats = (TokenStats(**dict(zip(_STATS, values, strict=True))) for values in zip(*columns, strict=True))
    return {id(row): one for row, one in zip(rows, stats, strict=True)}


def _nothing(row: LossRow) -> TokenStats:
    """For a row in which no token trains."""
    return TokenStats(**{name: np.full(len(row.sample.ids), np.nan, dtype=np.float32) for name in _STATS})


def _numpy(values: Tensor) -> Floats:
    return np.asarray(values.detach().float().cpu().numpy())
