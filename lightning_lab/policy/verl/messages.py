"""What the kernel, the driver and the ranks tell each other. Plain data: the kernel has neither verl nor tensordict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_lab.policy.torch.learner_options import StepOptions
from lightning_lab.records import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """What one update is to do."""

    own: StepOptions
    loss: str
    loss_options: Mapping[str, Any]
    learning_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank did in an update."""

    columns: Mapping[str, Floats]
    """By the names of ``report.COLUMNS``; over the trained tokens of the rank's rows, in the order of those rows."""
    masked: Mapping[str, int]
    loss: float
    grad_norm: float
    """Of the whole gradient, before clipping."""
