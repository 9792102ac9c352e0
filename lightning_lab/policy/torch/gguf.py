"""GGUF files to Hugging Face model directories."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.torch.model import quiet


def convert_gguf(source: Path, target: Path) -> None:
    """Dequantised float32 weights, tokenizer and chat template. Raises `PolicyError`."""
    try:
        with quiet():
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
    except Exception as error:
        raise PolicyError(
            f"{source} could not be converted ({type(error).__name__}: {error}). "
            "Check that transformers, gguf and accelerate are up to date and that the disk has room."
        ) from error
