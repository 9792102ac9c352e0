"""Model names to model directories."""

from __future__ import annotations

from pathlib import Path

from lightning_lab.policy.base import PolicyError

_QUICKSTART = Path(__file__).parent / "quickstart" / "checkpoint"


def resolve_model(model: str | Path) -> Path:
    """``"quickstart"``, ``"smollm2"`` or a path → model directory. Raises `PolicyError` where there is none."""
    if model == "quickstart":
        return _existing(_QUICKSTART, "Reinstall lightning-lab: the shipped model is missing from the installation.")
    return _existing(
        Path(model).expanduser(), "Give 'quickstart', 'smollm2' or the path of a Hugging Face model directory."
    )


def _existing(directory: Path, action: str) -> Path:
    if not directory.is_dir():
        raise PolicyError(f"There is no model directory at {directory}. {action}")
    return directory
