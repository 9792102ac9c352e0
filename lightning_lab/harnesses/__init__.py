"""Agent programs: Python functions, commands and released agents, each versioned by what it is made of."""

from lightning_lab.harnesses.errors import HarnessError
from lightning_lab.harnesses.harness import Harness, harness
from lightning_lab.harnesses.profiles import PROFILES

__all__ = ["PROFILES", "Harness", "HarnessError", "harness"]
