"""The embedded engine with weights that a learner elsewhere teaches it: one that runs on a cluster, for instance."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lightning_lab.policy.base import DetachedLearner, LossRow, PolicyError, UpdateResult
from lightning_lab.policy.torch.checkpoint import CheckpointError, fill, load_weights
from lightning_lab.policy.torch.policy import TorchPolicy

_STATE, _LEARNER = "taught.json", "learner"


class TaughtTorchPolicy(TorchPolicy):
    """Samples as `TorchPolicy` does; ``learner`` learns, and writes its weights down at each publish."""

    def __init__(self, model: str | Path = "quickstart", *, learner: DetachedLearner, **options: Any) -> None:
        """``options``: those of `TorchPolicy`."""
        super().__init__(model, **options)
        self._teacher = learner

    def close(self) -> None:
        super().close()
        self._teacher.close()

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        """One step of the learner; what samples changes with the next `publish`."""
        self.start()
        return self._teacher.update(micro_batches, loss=loss, options=options, learning_rate=learning_rate)

    def save(self, directory: Path) -> None:
        """The learner's own checkpoint, and where the sampling stood."""
        self.start()
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._teacher.save(directory / _LEARNER)
        state = {"version": self._version, "seed": self.seed, "submitted": self._submitted}
        (directory / _STATE).write_text(json.dumps(state), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Go back to a checkpoint, as `TorchPolicy.load` does. Raises `CheckpointError`."""
        self.start()
        path = Path(directory) / _STATE
        if not path.is_file():
            raise CheckpointError(f"{directory} is no checkpoint of a policy with a learner of its own (no {_STATE}).")
        state = json.loads(path.read_text(encoding="utf-8"))
        self._teacher.load(Path(directory) / _LEARNER)
        with self._engine.weights:
            self.seed, self._submitted = int(state["seed"]), int(state["submitted"])
            self._version = max(self._version, int(state["version"]))
            self._refresh_sampled()
            self._engine.publish(self._version)

    def _load(self) -> None:
        super()._load()
        try:
            self._teacher.start()
        except BaseException:
            self._engine.close()
            raise

    def _refresh_sampled(self) -> None:
        """Read what the learner writes. When that fails the earlier weights sample on."""
        with tempfile.TemporaryDirectory(prefix="lightning-lab-weights-") as place:
            self._teacher.export(Path(place))
            try:
                weights = load_weights(Path(place))
            except (OSError, ValueError, SafetensorError) as error:
                raise PolicyError(f"The learner's weights cannot be read ({error}).") from error
        fill(self._model, weights, "What the learner wrote")
        super()._refresh_sampled()
