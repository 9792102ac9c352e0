"""Published weights on disk: model directories that a server reloads from, or is started with."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning_lab.policy.vllm.errors import PublishError

_WEIGHTS = "*.safetensors"
_INDEX = "*.safetensors.index.json"
_HEADER_LIMIT = 100 * 2**20
_CHUNK = 2**20


class Weights:
    """The directory that is served, and how the next one comes about. Older ones are deleted."""

    def __init__(self, model: Path, directory: Path) -> None:
        """``model``: the model as it was given, never written to. ``directory``: for what is published."""
        self._model, self._directory = model, directory
        self.current = model

    def prepare(self, version: int, export: Callable[[Path], None]) -> Path:
        """A model directory with the weights that ``export`` writes. Raises `PublishError` for another model's."""
        target = self._directory / f"v{version}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        export(target)
        self.check(described(target))
        for file in self._model.iterdir():
            if not (file.match(_WEIGHTS) or file.match(_INDEX) or (target / file.name).exists()):
                (target / file.name).symlink_to(file.resolve())
        return target

    def check(self, found: Mapping[str, tuple[int, ...]]) -> None:
        """Names and shapes → nothing, or `PublishError` where they are another model's."""
        _check(described(self._model), found)

    def adopt(self, published: Path) -> None:
        """From now on this is served."""
        previous, self.current = self.current, published
        if previous != self._model and previous != published:
            shutil.rmtree(previous, ignore_errors=True)

    def discard(self, refused: Path) -> None:
        if refused != self.current:
            shutil.rmtree(refused, ignore_errors=True)


def described(model: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model directory's tensors, from the heads of its files."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(model.glob(_WEIGHTS)):
        for name, tensor in _header(file).items():
            if name != "__metadata__":
                shapes[name] = tuple(tensor["shape"])
    return shapes


def weights_digest(model: Path) -> str:
    """SHA-256 over the files that hold the weights."""
    digest = hashlib.sha256()
    for file in sorted(model.glob(_WEIGHTS)):
        with file.open("rb") as stream:
            while part := stream.read(_CHUNK):
                digest.update(part)
    return digest.hexdigest()


def _header(file: Path) -> Mapping[str, Any]:
    """safetensors: eight bytes of length, then JSON."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length < _HEADER_LIMIT:
            raise PublishError(f"{file} is no safetensors file.")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
        except ValueError as error:
            raise PublishError(f"{file} is damaged ({error}).") from error
    return header


def _check(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """A server keeps what a file lacks as it was, and would serve a mixture without a word."""
    wrong = [name for name, shape in wanted.items() if found.get(name) != shape]
    if wrong:
        name = wrong[0]
        raise PublishError(
            f"The learner gave {len(found)} tensors; {len(wrong)} of the model's {len(wanted)} are missing or have "
            f"another shape, {name} first ({found.get(name, 'missing')} for {wanted[name]})."
        )
