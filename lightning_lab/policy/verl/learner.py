"""`VerlLearner`: the `DetachedLearner` protocol over ranks of verl's training workers."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightning_lab.planning import plan
from lightning_lab.policy.base import LossRow, Seat, SharedWeight, UpdateResult
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.policy.torch.batch import split, trained_positions
from lightning_lab.policy.torch.checkpoint import CheckpointError
from lightning_lab.policy.torch.learner_options import StepOptions
from lightning_lab.policy.torch.objective import check_ids, check_loss
from lightning_lab.policy.torch.report import COLUMNS, update_result
from lightning_lab.policy.verl.errors import LearnerLostError
from lightning_lab.policy.verl.messages import RankResult, StepRequest
from lightning_lab.policy.verl.process import DriverProcess, verl_python
from lightning_lab.policy.verl.settings import VerlSettings
from lightning_lab.records import Floats, Sample

FORMAT = 1
_STATE, _VERL = "verl.json", "verl"

Rows = Sequence[LossRow]


class VerlLearner:
    """AdamW on the ranks' shards of a model's weights. All methods block; call them from one thread at a time."""

    def __init__(self, model: str | Path, **settings: Any) -> None:
        """``settings``: those of `VerlSettings`. Raises `SettingsError`."""
        self.settings = VerlSettings(**settings)
        self._model = model
        self._driver: DriverProcess | None = None
        self._ranks = 0
        self._seats: Sequence[Seat] = ()
        self._learned = False
        self._lost = ""
        """Why what was learned is gone; a checkpoint brings it back."""
        self.pids: Sequence[int] = ()
        """Processes of the ranks."""

    def start(self) -> None:
        """Start Ray and the ranks, and load the model. Idempotent. Raises `PolicyError`."""
        if self._driver is not None:
            return
        if self._lost:
            raise LearnerLostError(self._lost)
        self.directory = resolve_model(self._model)
        config = json.loads((self.directory / "config.json").read_text(encoding="utf-8"))
        self._vocabulary = int((config.get("text_config") or config)["vocab_size"])
        driver = DriverProcess(verl_python(self.settings.python))
        try:
            about = driver.ask("start", self.directory, self.settings, driver.environment)
        except BaseException:
            driver.close()
            raise
        self._driver, self._ranks, self.pids = driver, about["ranks"], about["pids"]
        self._seats = about["seats"]

    def close(self) -> None:
        """End the ranks, and Ray where it was started for them. Idempotent."""
        if self._driver is not None:
            self._driver.close()
        self._driver = None

    @property
    def ranks(self) -> int:
        """Ranks that see different rows."""
        self.start()
        return self._ranks

    @property
    def seats(self) -> Sequence[Seat]:
        """Places for inference servers in the ranks' bundles, one per rank; none without ``collocated``."""
        self.start()
        return self._seats

    def update(
        self, micro_batches: Sequence[Rows], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        """One step: gradients summed over the micro-batches of all ranks, clipped by their norm, applied.

        The micro-batches are dealt over the ranks by the planner, never joined, so none grows beyond its budget. A
        gradient that is not finite changes nothing and is reported as ``skipped`` = 1. Raises `PolicyError` as
        `TorchLearner.update` does, and `LearnerLostError`.
        """
        self.start()
        check_loss(loss)
        own, loss_options = StepOptions.split(options)
        check_ids(micro_batches, self._vocabulary)
        given = [row for rows in micro_batches for row in rows]
        parts = dealt(micro_batches, self._ranks)
        request = StepRequest(own=own, loss=loss, loss_options=loss_options, learning_rate=learning_rate)
        results: Sequence[RankResult] = self._ask("learn", parts, request)
        self._learned = True
        done = [row for part in parts for rows in part for row in rows if trained_positions(row).any()]
        norm = max(result.grad_norm for result in results)
        return update_result(
            {name: np.concatenate([result.columns[name] for result in results]) for name in COLUMNS},
            done,
            given,
            {name: sum(result.masked[name] for result in results) for name in own.corrections},
            token_stats=own.token_stats,
            loss=sum(result.loss for result in results),
            grad_norm=norm,
            skipped=0.0 if math.isfinite(norm) else 1.0,
            learning_rate=learning_rate,
        )

    def logprobs(self, samples: Sequence[Sample], *, temperature: float) -> Sequence[Floats]:
        """Log-probs of each sample's mask-1 tokens, shape [n] like ``sample.ids``; NaN where mask is False."""
        self.start()
        rows = [LossRow(sample=sample, advantage=0.0, token_weight=1.0) for sample in samples]
        parts = dealt([[row] for row in rows], self._ranks)
        found: dict[int, Floats] = {}
        for part, numbers in zip(parts, self._ask("logprobs", parts, temperature), strict=True):
            for batch, flat in zip(part, numbers, strict=True):
                training = [row for row in batch if trained_positions(row).any()]
                found.update((id(row), one) for row, one in zip(training, split(flat, training), strict=True))
        return [found.get(id(row), np.full(len(row.sample.ids), np.nan, np.float32)) for row in rows]

    def export(self, directory: Path) -> None:
        """The whole weights as safetensors with an index. All ranks must see the directory."""
        self.start()
        self._ask("export", Path(directory))

    def share(self) -> Iterator[Sequence[SharedWeight]]:
        """On the GPUs of all ranks, in the dtype that is published."""
        self.start()
        first = True
        while weights := self._ask("share", first):
            yield weights
            first = False

    def invite(self, receivers: int, *, towards: str, deadline_s: float) -> Mapping[str, Any]:
        """By rank 0, which may be on another machine than the lab."""
        self.start()
        told: Mapping[str, Any] = self._ask("invite", receivers, towards or socket.gethostname(), deadline_s)
        return told

    def gather(self) -> bool:
        return bool(self._ask("gather"))

    def leave(self) -> None:
        if self._driver is not None:  # else rank 0 is gone, and its end with it
            self._ask("leave")

    def send(self) -> Iterator[Sequence[SharedWeight]]:
        """In the dtype that is published."""
        first = True
        while weights := self._ask("offer", first):
            yield weights
            self._ask("send")
            first = False

    def save(self, directory: Path) -> None:
        """verl's own checkpoint: a file per rank, written by torch. All ranks must see the directory."""
        self.start()
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._ask("save", directory / _VERL)
        (directory / _STATE).write_text(json.dumps(self._state(), indent=1), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Go back to a checkpoint; a learner that was lost is started again. Raises `CheckpointError`.

        verl's files hold pickled objects: load checkpoints of your own runs only.
        """
        path = Path(directory) / _STATE
        if not path.is_file():
            raise CheckpointError(f"{directory} is no checkpoint of a learner on verl (it has no {_STATE}).")
        saved, now = json.loads(path.read_text(encoding="utf-8")), self._state()
        if saved != now:
            differ = ", ".join(f"{k}: {saved.get(k)!r}, now {now[k]!r}" for k in now if saved.get(k) != now[k])
            raise CheckpointError(
                f"The checkpoint in {directory} cannot be read by this learner ({differ}). verl keeps a file per rank: "
                "start the learner as it was."
            )
        self._lost = ""
        self.start()
        self._ask("load", Path(directory) / _VERL)
        self._learned = True

    def _state(self) -> dict[str, Any]:
        return {"format": FORMAT, "strategy": self.settings.strategy, "ranks": self.settings.ranks}

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Where a part of the learner is lost, all of it ends: ranks that are left wait for those that are gone."""
        assert self._driver is not None
        try:
            return self._driver.ask(method, *arguments)
        except LearnerLostError as error:
            self.close()
            self._lost = str(error).partition("\n")[0] if self._learned else ""
            raise


def dealt(micro_batches: Sequence[Rows], ranks: int) -> list[list[Rows]]:
    """Micro-batches by rank, the dearest side by side; equally many for each, the missing ones empty.

    None is joined with another, so that none grows beyond its budget. Those in which nothing trains are left out.
    """
    batches = [rows for rows in micro_batches if any(trained_positions(row).any() for row in rows)]
    if not batches:
        return [[] for _ in range(ranks)]
    batches = _enough(batches, ranks)
    lengths = [sum(len(row.sample.ids) for row in rows) for rows in batches]
    order: list[Rows] = [batches[index] for index in sorted(range(len(batches)), key=lambda i: (-lengths[i], i))]
    order += [[]] * (-len(order) % ranks)
    return [order[rank::ranks] for rank in range(ranks)]


def _enough(batches: Sequence[Rows], ranks: int) -> list[Rows]:
    """Micro-batches for every rank: where there are fewer than ranks, the planner divides them further."""
    if len(batches) >= ranks:
        return list(batches)
    rows = [row for batch in batches for row in batch]
    lengths = [len(row.sample.ids) for row in rows]
    budget = max(sum(len(row.sample.ids) for row in batch) for batch in batches)
    return [[rows[index] for index in indices] for indices in plan(lengths, budget, ranks).micro_batches]
