"""Logits to tokens: pure functions on tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def sampled_distribution(logits: Tensor, temperature: Tensor, top_p: Tensor | None, top_k: Tensor | None) -> Tensor:
    """Log-probs [rows, vocabulary] of the distribution that is sampled from: temperature, then top-k, then top-p.

    ``temperature`` [rows] is positive. ``top_p`` [rows] and ``top_k`` [rows] (0: no limit) are None where no row
    limits anything. Tokens that are filtered out get -inf.
    """
    logprobs = torch.log_softmax(logits.float() / temperature.unsqueeze(1), dim=-1)
    if top_p is None and top_k is None:
        return logprobs
    ordered, order = logprobs.sort(dim=-1, descending=True)
    if top_k is not None:
        rank = torch.arange(ordered.shape[1], device=ordered.device)
        limit = torch.where(top_k > 0, top_k, ordered.shape[1]).unsqueeze(1)
        ordered = torch.log_softmax(ordered.masked_fill(rank >= limit, -torch.inf), dim=-1)
    if top_p is not None:
        # The most probable tokens whose mass reaches top_p stay; the first one always does.
        before = ordered.exp().cumsum(dim=-1) - ordered.exp()
        ordered = ordered.masked_fill((before >= top_p.unsqueeze(1)) & (before > 0), -torch.inf)
    ordered = torch.log_softmax(ordered, dim=-1)
    return torch.empty_like(ordered).scatter_(1, order, ordered)


def draw(logprobs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling: one uniform number in [0, 1) per row gives one token, whatever else is in the batch.

    ``logprobs`` [rows, vocabulary], ``uniforms`` float64 [rows] → (ids int64 [rows], their log-probs [rows]).
    """
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    target = (uniforms * cumulative[:, -1]).unsqueeze(1)
    ids = torch.searchsorted(cumulative, target, right=True).clamp_(max=logprobs.shape[1] - 1)
    chosen = logprobs.gather(1, ids)
    # A target that rounds up to the whole mass may land on a filtered token; the best one is then the answer.
    best, best_ids = logprobs.max(dim=-1, keepdim=True)
    lost = torch.isneginf(chosen)
    return torch.where(lost, best_ids, ids).squeeze(1), torch.where(lost, best, chosen).squeeze(1)
