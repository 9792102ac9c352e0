"""The notebook room: Lab, Trainer, runs, and the bridge to the panel."""

from lightning_lab.notebook.errors import (
    GraderError,
    HarnessError,
    LabBusyError,
    LabClosedError,
    LabError,
    MissingExtraError,
    ResumeError,
    RolloutError,
    RunFailedError,
)
from lightning_lab.notebook.lab import Lab
from lightning_lab.notebook.policies import Learner, LearnerSpec, Policy, PolicySpec
from lightning_lab.notebook.recipes import Recipe, RecipeError
from lightning_lab.notebook.recipes import load_recipe as recipe
from lightning_lab.notebook.rollout import RolloutView
from lightning_lab.notebook.run import RunHandle, StoredRun, load
from lightning_lab.notebook.selection import Selection
from lightning_lab.notebook.status import LabStatus
from lightning_lab.notebook.trainer import Trainer
from lightning_lab.notebook.views import MIME_TYPE, View

__all__ = [
    "MIME_TYPE",
    "GraderError",
    "HarnessError",
    "Lab",
    "LabBusyError",
    "LabClosedError",
    "LabError",
    "LabStatus",
    "Learner",
    "LearnerSpec",
    "MissingExtraError",
    "Policy",
    "PolicySpec",
    "Recipe",
    "RecipeError",
    "ResumeError",
    "RolloutError",
    "RolloutView",
    "RunFailedError",
    "RunHandle",
    "Selection",
    "StoredRun",
    "Trainer",
    "View",
    "load",
    "recipe",
]
