"""What an update may be told beside its loss's own options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_lab.algorithms.correction import CORRECTIONS, REWEIGHTING
from lightning_lab.algorithms.kl import KL_ESTIMATORS
from lightning_lab.policy.base import PolicyError


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Raises `PolicyError` for values that cannot work."""

    temperature: float = 1.0
    """The temperature that the tokens were sampled at."""
    max_grad_norm: float = 1.0
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; each token counts with its loss weight."""
    weight_decay: float = 0.0
    kl_coef: float = 0.0
    """Weight of the KL to the reference, the model as it was loaded; each token counts with its loss weight."""
    kl_estimator: str = "k3"
    """A key of ``algorithms.kl.KL_ESTIMATORS``."""
    old: str = "rollout"
    """π_old of the loss: the sampler's log-probs, or ``recomputed`` by the learner before the step."""
    corrections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Off-policy corrections by name (``algorithms.correction.CORRECTIONS``) with their options."""
    token_stats: bool = True

    def __post_init__(self) -> None:
        if self.old not in ("rollout", "recomputed"):
            raise PolicyError(f"old is {self.old!r}; it must be 'rollout' or 'recomputed'.")
        if self.kl_estimator not in KL_ESTIMATORS:
            raise PolicyError(
                f"There is no kl_estimator {self.kl_estimator!r}. Use one of: {', '.join(KL_ESTIMATORS)}."
            )
        if unknown := sorted(set(self.corrections) - set(CORRECTIONS)):
            raise PolicyError(f"There is no correction {', '.join(unknown)}. Use some of: {', '.join(CORRECTIONS)}.")
        twice = sorted(REWEIGHTING.intersection(self.corrections))
        if twice and self.old == "rollout":
            raise PolicyError(
                f"{', '.join(twice)} multiplies by the ratio to the sampler, which the loss's own ratio holds already. "
                "Set old='recomputed', or use a mask (sequence_mask, geometric_mask)."
            )

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple[StepOptions, dict[str, Any]]:
        """(own options, the loss's options)."""
        own = {name: value for name, value in options.items() if name in cls.__dataclass_fields__}
        return cls(**own), {name: value for name, value in options.items() if name not in own}
