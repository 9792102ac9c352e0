"""Agent programs: Python functions and commands, each versioned by what it is made of."""

from lightning_lab.harnesses.harness import Harness, HarnessError, harness

__all__ = ["Harness", "HarnessError", "harness"]
