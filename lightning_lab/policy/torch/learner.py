"""One optimiser step at a time on the weights that the engine samples from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lightning_lab.algorithms.losses import LOSSES
from lightning_lab.policy.base import LossRow, PolicyError, TokenStats, UpdateResult
from lightning_lab.policy.torch.batch import (
    SharedPrefix,
    clusters,
    make_batch,
    parts,
    read_prefix,
    split,
    token_logprobs,
    trained_logits,
)
from lightning_lab.policy.torch.forward import Forward
from lightning_lab.records import Floats

CPU_TOKENS = 1024
"""Tokens of one forward and backward pass on a CPU: activations that stay in its caches are several times faster."""
_STATS = ("entropy", "logprobs", "ratio", "clipped", "loss")


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What an update may be told beside its loss's own options."""

    temperature: float = 1.0
    """The temperature that the tokens were sampled at."""
    max_grad_norm: float = 1.0
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; each token counts with its loss weight."""
    weight_decay: float = 0.0
    token_stats: bool = True

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple[StepOptions, dict[str, Any]]:
        """(own options, the loss's options)."""
        own = {name: value for name, value in options.items() if name in cls.__dataclass_fields__}
        return cls(**own), {name: value for name, value in options.items() if name not in own}


class TorchLearner:
    """AdamW on a model's parameters. The caller keeps the engine from stepping meanwhile."""

    def __init__(self, model: PreTrainedModel, forward: Forward) -> None:
        """``forward`` runs on the model's own parameters."""
        self._model, self._forward = model, forward
        self._part_tokens = CPU_TOKENS if model.device.type == "cpu" else None
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self._parameters, lr=0.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        """One step: gradients summed over the micro-batches, clipped by their norm, applied.

        A gradient that is not finite changes nothing and is reported as ``skipped`` = 1.
        """
        if loss not in LOSSES:
            raise PolicyError(f"There is no loss {loss!r}. Use one of: {', '.join(sorted(LOSSES))}.")
        own, loss_options = StepOptions.split(options)
        self.optimizer.zero_grad(set_to_none=True)
        columns: dict[str, list[Floats]] = {name: [] for name in (*_STATS, "sampler_gap")}
        done: list[LossRow] = []
        total = 0.0
        for rows in micro_batches:
            for cluster in clusters(rows):
                kv = read_prefix(self._forward, cluster, self._model.device, self._model.dtype)
                for part in parts(cluster, self._part_tokens):
                    total += self._accumulate(kv, part, loss, loss_options, own, columns)
                    done += part
                kv.backward()
        applied, norm = self._apply(own, learning_rate)
        flat = {name: np.concatenate(found) if found else np.zeros(0, np.float32) for name, found in columns.items()}
        metrics = _metrics(flat)
        metrics.update(loss=total, grad_norm=norm, skipped=0.0 if applied else 1.0, learning_rate=learning_rate)
        if not own.token_stats:
            return UpdateResult(metrics=metrics)
        known = _token_stats(flat, done)
        return UpdateResult(
            metrics=metrics, tokens=[known.get(id(row)) or _nothing(row) for rows in micro_batches for row in rows]
        )

    def _accumulate(
        self,
        kv: SharedPrefix,
        rows: Sequence[LossRow],
        loss: str,
        loss_options: Mapping[str, Any],
        own: StepOptions,
        columns: Mapping[str, list[Floats]],
    ) -> float:
        """Add the gradient of some rows → their loss."""
        batch = make_batch(rows, kv.length, self._model.device)
        logits = trained_logits(self._forward, kv, batch, self._model.dtype) / own.temperature
        logprobs, entropy = token_logprobs(logits, batch.targets, entropy_gradient=own.entropy_coef != 0)
        summed, stats = LOSSES[loss](logprobs, batch.old_logprobs, batch.advantages, batch.weights, **loss_options)
        if own.entropy_coef:
            summed = summed - own.entropy_coef * (batch.weights * entropy).sum()
        torch.autograd.backward(summed)
        stats = {**stats, "entropy": entropy, "logprobs": logprobs, "sampler_gap": logprobs - batch.sampler_logprobs}
        for name, found in columns.items():
            found.append(_numpy(stats[name]))
        return float(summed.detach())

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


def _metrics(flat: Mapping[str, Floats]) -> dict[str, float]:
    """Token means over everything that trains, by the names of the field."""
    ratio = flat["ratio"].astype(np.float64)
    if not len(ratio):
        names = ("entropy", "approx_kl", "clip_frac", "ratio_mean", "ratio_max", "tokens", "logprob_diff_max")
        return dict.fromkeys(names, 0.0)
    gap = np.abs(flat["sampler_gap"])
    return {
        "entropy": float(flat["entropy"].mean()),
        # k3 of Schulman 2020, "Approximating KL Divergence": KL(old‖new) from samples of old.
        "approx_kl": float((ratio - 1.0 - np.log(np.maximum(ratio, 1e-30))).mean()),
        "clip_frac": float(flat["clipped"].mean()),
        "ratio_mean": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "tokens": float(len(ratio)),
        "logprob_diff_max": float(np.nanmax(gap)) if np.isfinite(gap).any() else 0.0,
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
