"""Columns of numbers and texts for the wire: descriptions for the JSON header, one buffer for each column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from lightning_lab.notebook.plain import well_formed

_FORMATS = {"f64": "<f8", "f32": "<f4", "i32": "<i4"}


class Columns:
    """Equally long columns. ``described`` goes into the header, ``buffers`` beside it, in the same order."""

    def __init__(self) -> None:
        self.described: list[dict[str, Any]] = []
        self.buffers: list[bytes] = []

    def numbers(self, name: str, kind: str, values: npt.ArrayLike) -> None:
        """``kind``: ``f64``, ``f32`` (NaN where there is no number) or ``i32``."""
        self._add(name, kind, np.asarray(values, _FORMATS[kind]).tobytes())

    def codes(self, name: str, codes: npt.ArrayLike, words: Sequence[str]) -> None:
        """One byte per value: its place in ``words``, at most 256."""
        self._add(name, "code", np.asarray(codes, np.uint8).tobytes(), values=list(words))

    def texts(self, name: str, values: Sequence[str]) -> None:
        try:
            self._add(name, "json", orjson.dumps(values))
        except TypeError:  # a lone surrogate somewhere
            self._add(name, "json", orjson.dumps([well_formed(value) for value in values]))

    def encoded_texts(self, name: str, values: Sequence[bytes]) -> None:
        """Texts that are JSON already."""
        self._add(name, "json", b"[" + b",".join(values) + b"]")

    def _add(self, name: str, kind: str, data: bytes, **more: Any) -> None:
        self.described.append({"name": name, "type": kind, "buffer": len(self.buffers), **more})
        self.buffers.append(data)
