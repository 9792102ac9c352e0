"""Lightning Lab: notebook-first harnessed agentic RL.

The public names are imported on first use, so that ``import lightning_lab`` is quick and loads no torch.
"""

import logging
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Background threads must never print into a cell: without this, Python's last-resort handler would.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_EXPORTS = {
    "Grader": "lightning_lab.tasks",
    "Harness": "lightning_lab.harnesses",
    "Lab": "lightning_lab.notebook",
    "Learner": "lightning_lab.notebook",
    "Limits": "lightning_lab.controller",
    "Policy": "lightning_lab.notebook",
    "SECRETS": "lightning_lab.store",
    "Sampling": "lightning_lab.records",
    "Trainer": "lightning_lab.notebook",
    "Workers": "lightning_lab.cluster",
    "explain": "lightning_lab.samples",
    "grader": "lightning_lab.tasks",
    "harness": "lightning_lab.harnesses",
    "load": "lightning_lab.notebook",
    "records": "lightning_lab.records",
    "recipe": "lightning_lab.notebook",
    "register_estimator": "lightning_lab.algorithms",
    "tasks": "lightning_lab.tasks",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    try:
        module = import_module(_EXPORTS[name])
    except KeyError:
        raise AttributeError(f"module 'lightning_lab' has no attribute {name!r}") from None
    value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
