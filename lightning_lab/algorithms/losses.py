"""Policy losses, per token. The normaliser is already inside ``weights``, so a loss only sums.

Every loss takes flat tensors of T tokens: ``logprobs`` (with gradient), ``old_logprobs``, ``advantages``, ``weights``.
A weight of 0 marks a token that does not train: it adds exactly 0 to loss and gradient, whatever its log-probs hold.
It returns the scalar sum and, per token and detached, ``ratio`` = π/π_old, ``clipped`` (1 where the clip is active)
and ``loss`` (weighted). An unknown option raises TypeError.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LossResult = tuple[Tensor, dict[str, Tensor]]
Loss = Callable[..., LossResult]

MAX_LOG_RATIO = 20.0
"""Keeps exp() finite; a ratio beyond e^20 is far outside any clip."""


def ppo_clip(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> LossResult:
    """Σ_t w_t · −min(ρ_t A_t, clamp(ρ_t, 1 − clip_low, 1 + clip_high) A_t), ρ_t = exp(logprob_t − old_logprob_t).

    Source: Schulman et al. 2017, PPO (arXiv 1707.06347), eq. 7; a higher upper clip: DAPO (arXiv 2503.14476), §3.1.
    """
    ratio = torch.exp(_log_ratio(logprobs, old_logprobs, weights))
    plain = ratio * advantages
    clamped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return _summed(-torch.minimum(plain, clamped), weights, ratio, clamped < plain)


def policy_gradient(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weights: Tensor) -> LossResult:
    """Σ_t w_t · −A_t logprob_t: on-policy REINFORCE. ``old_logprobs`` only serve the ratio that is reported.

    Source: Williams 1992, Simple statistical gradient-following algorithms, eq. 4.
    """
    ratio = torch.exp(_log_ratio(logprobs, old_logprobs, weights))
    terms = -advantages * torch.where(weights != 0, logprobs, torch.zeros_like(logprobs))
    return _summed(terms, weights, ratio, torch.zeros_like(ratio, dtype=torch.bool))


def _log_ratio(logprobs: Tensor, old_logprobs: Tensor, weights: Tensor) -> Tensor:
    difference = logprobs - old_logprobs
    return torch.where(weights != 0, difference, torch.zeros_like(difference)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _summed(terms: Tensor, weights: Tensor, ratio: Tensor, clipped: Tensor) -> LossResult:
    loss = terms * weights
    trains = weights != 0
    return loss.sum(), {
        "ratio": ratio.detach(),
        "clipped": (clipped & trains).to(loss.dtype).detach(),
        "loss": loss.detach(),
    }


LOSSES: dict[str, Loss] = {"ppo_clip": ppo_clip, "policy_gradient": policy_gradient}
"""Losses by name; register your own function here."""
