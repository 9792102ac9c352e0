"""GGUF files to Hugging Face model directories.

The conversion runs in a process of its own: it draws progress bars, holds the interpreter for a minute and leaves a
gigabyte behind, none of which belongs into a notebook's kernel.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lightning_lab.policy.base import PolicyError


def convert_gguf(source: Path, target: Path) -> None:
    """Dequantised float32 weights, tokenizer and chat template into ``target``. Raises `PolicyError`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(source), str(target)], env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise PolicyError(
            f"{source} could not be converted ({said[-1]}). "
            "Check that transformers, gguf and accelerate are up to date and that the disk has room."
        )


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        local_files_only=True,
    )
    tokenizer.save_pretrained(target)
    model.save_pretrained(target)


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
