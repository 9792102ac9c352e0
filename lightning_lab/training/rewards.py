"""Which rewards count."""

from __future__ import annotations

import math

from lightning_lab.records import INFRASTRUCTURE_OUTCOMES, Rollout


def valid_reward(rollout: Rollout) -> float | None:
    """The reward if it is finite and the infrastructure did its part, else None."""
    if rollout.reward is None or not math.isfinite(rollout.reward) or is_infrastructure(rollout):
        return None
    return float(rollout.reward)


def is_infrastructure(rollout: Rollout) -> bool:
    """Whether the rollout ended for a reason that says nothing about the agent."""
    return rollout.outcome in INFRASTRUCTURE_OUTCOMES
