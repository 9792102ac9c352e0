"""Samples → micro-batches under a token budget, and a model's sizes → memory per GPU."""

from lightning_lab.planning.memory import DoesNotFitError, EngineLayout, Layout, MemoryPlan, plan_memory
from lightning_lab.planning.plan import Plan, PlanError, plan, split_steps, transformer_cost
from lightning_lab.planning.shape import ModelShape, UnknownShapeError

__all__ = [
    "DoesNotFitError",
    "EngineLayout",
    "Layout",
    "MemoryPlan",
    "ModelShape",
    "Plan",
    "PlanError",
    "UnknownShapeError",
    "plan",
    "plan_memory",
    "split_steps",
    "transformer_cost",
]
