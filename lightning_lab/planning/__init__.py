"""Samples → micro-batches under a token budget."""

from lightning_lab.planning.plan import Plan, PlanError, plan

__all__ = ["Plan", "PlanError", "plan"]
