"""KL to a reference policy, estimated per token from sampled tokens.

With r = π_ref(t) / π(t): k1 = −log r (unbiased value, but as a loss its expected gradient on policy is 0), k2 =
(log r)² / 2 (biased value, gradient of KL(π‖π_ref) on policy), k3 = r − 1 − log r (unbiased, never negative; the
estimator of GRPO). Source: Schulman 2020, Approximating KL Divergence (joschu.net/blog/kl-approx.html); for the
gradients: Liu et al. 2025, Rethinking KL Regularization in RLHF (arXiv 2510.01555).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_lab.algorithms.losses import MAX_LOG_RATIO


def _k1(log_r: Tensor) -> Tensor:
    return -log_r


def _k2(log_r: Tensor) -> Tensor:
    return 0.5 * log_r.square()


def _k3(log_r: Tensor) -> Tensor:
    return torch.exp(log_r) - 1.0 - log_r


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": _k1, "k2": _k2, "k3": _k3}


def reference_kl(logprobs: Tensor, reference: Tensor, weights: Tensor, estimator: str = "k3") -> Tensor:
    """Per token [T], with its gradient: 0 where the weight is 0. Raises KeyError for an unknown estimator.

    The loss adds ``kl_coef · Σ_t w_t · kl_t``.
    """
    log_r = reference - logprobs
    log_r = torch.where(weights != 0, log_r, torch.zeros_like(log_r)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return KL_ESTIMATORS[estimator](log_r)
