"""Weights → safetensors files as Hugging Face models have them, written as they come, so that memory holds one file."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

FILE_BYTES = 4 << 30


class WeightFiles:
    """``model-00001.safetensors`` …, and the index that says where each weight is."""

    def __init__(self, directory: Path, file_bytes: int = FILE_BYTES) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._file_bytes = directory, file_bytes
        self._held: dict[str, Tensor] = {}
        self._bytes = self._total = 0
        self._places: dict[str, str] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """Take one more weight, on the CPU."""
        size = tensor.numel() * tensor.element_size()
        if self._held and self._bytes + size > self._file_bytes:
            self._write()
        self._held[name] = tensor.contiguous()
        self._bytes += size
        self._total += size

    def close(self) -> None:
        """Write what is left, and the index last."""
        self._write()
        index = {"metadata": {"total_size": self._total}, "weight_map": self._places}
        (self._directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")

    def _write(self) -> None:
        name = f"model-{len(set(self._places.values())) + 1:05d}.safetensors"
        save_file(self._held, self._directory / name, metadata={"format": "pt"})
        self._places.update(dict.fromkeys(self._held, name))
        self._held, self._bytes = {}, 0
