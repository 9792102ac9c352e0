"""Policy losses, per token. The normaliser is already inside ``weights``, so a loss only sums.

Every loss takes flat tensors of T tokens: ``logprobs`` (with gradient), ``old_logprobs``, ``advantages``, ``weights``,
and may be given ``sequences`` (int64 [T]: which call a token belongs to; a *sequence* is one call, so that cutting a
rollout into samples changes nothing; None: all tokens are one call) and ``factors`` (off-policy correction, [T],
constant: they multiply the loss terms and change no denominator).

A weight of 0 marks a token that does not train: it adds exactly 0 to loss and gradient, whatever its log-probs hold.
A loss returns the scalar sum and, per token and detached, ``ratio`` = π/π_old, ``clipped`` (1 where the clip is active)
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
    sequences: Tensor | None = None,
    factors: Tensor | None = None,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> LossResult:
    """Σ_t w_t · −min(ρ_t A_t, clamp(ρ_t, 1 − clip_low, 1 + clip_high) A_t), ρ_t = exp(logprob_t − old_logprob_t).

    With ``dual_clip`` = c > 1 the term of a negative advantage is at most c·|A_t|, however large the ratio.
    Source: Schulman et al. 2017, PPO (arXiv 1707.06347), eq. 7; a higher upper clip: DAPO (arXiv 2503.14476), §3.1;
    the dual clip: Ye et al. 2019 (arXiv 1912.09729), eq. 5.
    """
    if dual_clip is not None and not dual_clip > 1.0:
        raise ValueError(f"dual_clip is {dual_clip}; it must be above 1, or None for no dual clip.")
    ratio = torch.exp(_log_ratio(logprobs, old_logprobs, weights))
    plain = ratio * advantages
    clamped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    kept = torch.minimum(plain, clamped)
    clipped = clamped < plain
    if dual_clip is not None:
        floor = dual_clip * advantages
        beyond = (advantages < 0) & (kept < floor)
        kept, clipped = torch.where(beyond, floor, kept), clipped | beyond
    return _summed(-kept, weights, factors, ratio, clipped)


def gspo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    sequences: Tensor | None = None,
    factors: Tensor | None = None,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> LossResult:
    """PPO's clip on one ratio per sequence: s = exp(mean_t (logprob_t − old_logprob_t)), the mean over a call's tokens.

    Each token's term is −min(s_t A, clamp(s_t, 1 − clip_low, 1 + clip_high) A) with s_t = sg(s) · π_t / sg(π_t), which
    has the value and, summed with equal weights, the gradient of the sequence's own term.
    Source: Zheng et al. 2025, GSPO (arXiv 2507.18071), eq. 5–7 and 13 (GSPO-token); the clip range is the paper's §5.1.
    """
    difference = _log_ratio(logprobs, old_logprobs, weights)
    mean = sequence_means(difference.detach(), weights != 0, sequences)
    ratio = torch.exp(difference)
    kept_logprobs = torch.where(weights != 0, logprobs, torch.zeros_like(logprobs))
    of_sequence = torch.exp(mean + kept_logprobs - kept_logprobs.detach())
    plain = of_sequence * advantages
    clamped = of_sequence.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    return _summed(-torch.minimum(plain, clamped), weights, factors, ratio, clamped < plain)


def cispo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    sequences: Tensor | None = None,
    factors: Tensor | None = None,
    *,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
) -> LossResult:
    """Σ_t w_t · −sg(clamp(ρ_t, 1 − clip_low, 1 + clip_high)) A_t logprob_t: the weight is clipped, no token is dropped.

    ``clip_low`` = 1 sets no lower bound, as in the paper; the upper bound is to be tuned.
    Source: MiniMax 2025, MiniMax-M1 (arXiv 2506.13585), eq. 4–5.
    """
    ratio = torch.exp(_log_ratio(logprobs, old_logprobs, weights))
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high).detach()
    kept_logprobs = torch.where(weights != 0, logprobs, torch.zeros_like(logprobs))
    return _summed(-bounded * advantages * kept_logprobs, weights, factors, ratio, bounded != ratio.detach())


def policy_gradient(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    sequences: Tensor | None = None,
    factors: Tensor | None = None,
) -> LossResult:
    """Σ_t w_t · −A_t logprob_t: on-policy REINFORCE. ``old_logprobs`` only serve the ratio that is reported.

    Source: Williams 1992, Simple statistical gradient-following algorithms, eq. 4.
    """
    ratio = torch.exp(_log_ratio(logprobs, old_logprobs, weights))
    terms = -advantages * torch.where(weights != 0, logprobs, torch.zeros_like(logprobs))
    return _summed(terms, weights, factors, ratio, torch.zeros_like(ratio, dtype=torch.bool))


def sequence_sums(values: Tensor, trains: Tensor, sequences: Tensor | None) -> Tensor:
    """Per token: the sum of ``values`` over the tokens of its sequence that train. Shape [T]."""
    labels = torch.zeros(len(values), dtype=torch.long, device=values.device) if sequences is None else sequences
    count = int(labels.max()) + 1 if len(labels) else 0
    sums = values.new_zeros(count).index_add_(0, labels, torch.where(trains, values, torch.zeros_like(values)))
    return sums[labels]


def sequence_means(values: Tensor, trains: Tensor, sequences: Tensor | None) -> Tensor:
    """Per token: the mean of ``values`` over the tokens of its sequence that train; 0 where none does. Shape [T]."""
    counts = sequence_sums(torch.ones_like(values), trains, sequences)
    return sequence_sums(values, trains, sequences) / counts.clamp_min(1.0)


def _log_ratio(logprobs: Tensor, old_logprobs: Tensor, weights: Tensor) -> Tensor:
    difference = logprobs - old_logprobs
    return torch.where(weights != 0, difference, torch.zeros_like(difference)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _summed(terms: Tensor, weights: Tensor, factors: Tensor | None, ratio: Tensor, clipped: Tensor) -> LossResult:
    loss = terms * (weights if factors is None else weights * factors)
    trains = weights != 0
    return loss.sum(), {
        "ratio": ratio.detach(),
        "clipped": (clipped & trains).to(loss.dtype).detach(),
        "loss": loss.detach(),
    }


LOSSES: dict[str, Loss] = {"ppo_clip": ppo_clip, "gspo": gspo, "cispo": cispo, "policy_gradient": policy_gradient}
"""Losses by name; register your own function here."""
