"""Off-policy correction: the engine that sampled a token and the learner do not give it the same probability.

ρ_t = π_learner(t) / π_sampler(t) at the start of the update. A correction turns it into a constant factor of the
token's loss term: an importance weight, or 0 where the token is masked. Denominators stay (weights are fixed before),
so a masked token never makes the others weigh more. A sequence is one call. Several corrections multiply.

Worked example: ``{"token_tis": {"cap": 2.0}, "geometric_mask": {"low": 0.99, "high": 1.01}}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_lab.algorithms.losses import MAX_LOG_RATIO, sequence_means, sequence_sums

Correction = Callable[..., Tensor]


def token_tis(log_ratio: Tensor, trains: Tensor, sequences: Tensor | None, *, cap: float = 2.0) -> Tensor:
    """min(ρ_t, cap): truncated importance sampling per token.

    Source: Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training, "TIS".
    """
    return _exp(log_ratio).clamp(max=cap)


def icepop(
    log_ratio: Tensor, trains: Tensor, sequences: Tensor | None, *, low: float = 0.5, high: float = 5.0
) -> Tensor:
    """ρ_t where low ≤ ρ_t ≤ high, else 0. Source: Ling team 2025, Every Step Evolves (arXiv 2510.18855), IcePop."""
    return _window(_exp(log_ratio), low, high)


def token_mis(log_ratio: Tensor, trains: Tensor, sequences: Tensor | None, *, cap: float = 2.0) -> Tensor:
    """ρ_t where ρ_t ≤ cap, else 0: masked importance sampling per token.

    Source: Liu, Li et al. 2025, When Speed Kills Stability (richardli.xyz/rl-collapse), "MIS".
    """
    return _window(_exp(log_ratio), 0.0, cap)


def sequence_tis(log_ratio: Tensor, trains: Tensor, sequences: Tensor | None, *, cap: float = 2.0) -> Tensor:
    """min(Π_t ρ_t, cap) over a call's tokens. Source: When Speed Kills Stability, sequence-level TIS."""
    return _exp(sequence_sums(log_ratio, trains, sequences)).clamp(max=cap)


def sequence_mis(log_ratio: Tensor, trains: Tensor, sequences: Tensor | None, *, cap: float = 2.0) -> Tensor:
    """Π_t ρ_t where it is at most cap, else 0. Source: When Speed Kills Stability, sequence-level MIS."""
    return _window(_exp(sequence_sums(log_ratio, trains, sequences)), 0.0, cap)


def sequence_mask(
    log_ratio: Tensor, trains: Tensor, sequences: Tensor | None, *, low: float = 0.5, high: float = 2.0
) -> Tensor:
    """1 where low ≤ Π_t ρ_t ≤ high over a call's tokens, else 0: rejection without reweighting.

    Source: When Speed Kills Stability, rejection sampling; verl's ``seq_sum_k1``.
    """
    return _inside(sequence_sums(log_ratio, trains, sequences), low, high)


def geometric_mask(
    log_ratio: Tensor, trains: Tensor, sequences: Tensor | None, *, low: float = 0.99, high: float = 1.01
) -> Tensor:
    """1 where low ≤ (Π_t ρ_t)^(1/n) ≤ high over a call's n tokens, else 0: does not punish length.

    Source: When Speed Kills Stability, geometric sequence masking; verl's ``seq_mean_k1``.
    """
    return _inside(sequence_means(log_ratio, trains, sequences), low, high)


CORRECTIONS: dict[str, Correction] = {
    "token_tis": token_tis,
    "icepop": icepop,
    "token_mis": token_mis,
    "sequence_tis": sequence_tis,
    "sequence_mis": sequence_mis,
    "sequence_mask": sequence_mask,
    "geometric_mask": geometric_mask,
}
"""Corrections by name; register your own function here."""

REWEIGHTING = frozenset({"token_tis", "icepop", "token_mis", "sequence_tis", "sequence_mis"})
"""They multiply by ρ itself, so the loss's own ratio must not hold it too: they need ``old="recomputed"``."""


def correction_factors(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    weights: Tensor,
    sequences: Tensor | None,
    corrections: Mapping[str, Mapping[str, Any]],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Factors [T], constant, and by correction the tokens [T] that it masked first.

    A token with weight 0 gets factor 0 and is nobody's. Raises KeyError for an unknown name, TypeError for an unknown
    option.
    """
    trains = weights != 0
    difference = logprobs.detach() - sampler_logprobs
    log_ratio = torch.where(trains, difference, torch.zeros_like(difference))
    factors = trains.to(log_ratio.dtype)
    masked: dict[str, Tensor] = {}
    for name, options in corrections.items():
        factor = CORRECTIONS[name](log_ratio, trains, sequences, **options)
        masked[name] = (factor == 0) & (factors != 0)
        factors = factors * factor
    return factors, masked


def _exp(log_ratio: Tensor) -> Tensor:
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def _window(ratio: Tensor, low: float, high: float) -> Tensor:
    return torch.where((ratio >= low) & (ratio <= high), ratio, torch.zeros_like(ratio))


def _inside(log_ratio: Tensor, low: float, high: float) -> Tensor:
    ratio = _exp(log_ratio)
    return ((ratio >= low) & (ratio <= high)).to(ratio.dtype)
