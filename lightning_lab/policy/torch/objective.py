"""What an update minimises, on flat tensors of trained tokens: the same for every learner.

loss + kl_coef · Σ w·kl − entropy_coef · Σ w·entropy, with the weights w fixed before micro-batching; so the objectives
of micro-batches and of ranks only add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_lab.algorithms.correction import correction_factors
from lightning_lab.algorithms.kl import reference_kl
from lightning_lab.algorithms.losses import LOSSES
from lightning_lab.policy.base import LossRow, PolicyError, SampleError
from lightning_lab.policy.torch.learner_options import StepOptions


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a loss needs to know of the T trained tokens of some rows, row by row."""

    targets: Tensor
    """int64 [T]: the trained tokens."""
    old_logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    """float32 [T] each. Tokens without a finite old log-prob have weight 0."""
    sequences: Tensor
    """int64 [T]: which call a token belongs to, counted through the rows."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Its value, with a gradient, and what it says about each token."""

    value: Tensor
    columns: Mapping[str, Tensor]
    """[T] each, detached, by the names of ``report.COLUMNS``."""
    masked: Mapping[str, int]
    """Tokens that an off-policy correction masked, by its name."""


def objective(
    tokens: Tokens,
    logprobs: Tensor,
    entropy: Tensor,
    reference: Tensor | None,
    own: StepOptions,
    loss: str,
    loss_options: Mapping[str, Any],
) -> Objective:
    """``logprobs``, ``entropy`` and ``reference`` log-probs (None: no KL), [T] each, all at ``own.temperature``."""
    factors, masked = correction_factors(
        logprobs, tokens.sampler_logprobs, tokens.weights, tokens.sequences, own.corrections
    )
    old = tokens.old_logprobs if own.old == "rollout" else logprobs.detach()
    value, stats = LOSSES[loss](
        logprobs, old, tokens.advantages, tokens.weights, tokens.sequences, factors, **loss_options
    )
    if own.entropy_coef:
        value = value - own.entropy_coef * (tokens.weights * entropy).sum()
    kl = torch.zeros_like(logprobs)
    if reference is not None:
        kl = reference_kl(logprobs, reference, tokens.weights, own.kl_estimator)
        value = value + own.kl_coef * (tokens.weights * kl).sum()
    columns = {**stats, "entropy": entropy, "logprobs": logprobs, "sampler_gap": logprobs - tokens.sampler_logprobs}
    columns |= {"effective_weight": tokens.weights * factors, "kl": kl}
    return Objective(
        value=value,
        columns={name: column.detach() for name, column in columns.items()},
        masked={name: int(fallen.sum()) for name, fallen in masked.items()},
    )


def check_loss(loss: str) -> None:
    """Raises `PolicyError` for an unknown one."""
    if loss not in LOSSES:
        raise PolicyError(f"There is no loss {loss!r}. Use one of: {', '.join(sorted(LOSSES))}.")


def check_ids(micro_batches: Sequence[Sequence[LossRow]], vocabulary: int) -> None:
    """An id without an embedding would read foreign memory or end the process. Raises `SampleError`."""
    for row in (row for rows in micro_batches for row in rows):
        ids = row.sample.ids
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
            raise SampleError(
                "unknown_ids",
                f"A sample of rollout {row.sample.rollout_id} has ids from {ids.min()} to {ids.max()}; the model "
                f"knows 0 to {vocabulary - 1}. It was sampled by a model with another vocabulary.",
            )
