"""Samples → micro-batches under a token budget."""

from lightning_lab.planning.plan import Plan, PlanError, plan, split_steps, transformer_cost

__all__ = ["Plan", "PlanError", "plan", "split_steps", "transformer_cost"]
