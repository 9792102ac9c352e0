"""The training loop: collect whole groups, make samples, weigh them, update, publish. Loads no torch by itself."""

from lightning_lab.training.checkpoint import (
    CheckpointError,
    LoopState,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from lightning_lab.training.config import ConfigError, TrainConfig
from lightning_lab.training.evaluation import EvalResult, evaluate
from lightning_lab.training.failures import TrainingStopped
from lightning_lab.training.loop import TrainingLoop
from lightning_lab.training.parts import LabParts

__all__ = [
    "CheckpointError",
    "ConfigError",
    "EvalResult",
    "LabParts",
    "LoopState",
    "TrainConfig",
    "TrainingLoop",
    "TrainingStopped",
    "evaluate",
    "latest_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]
