"""The embedded learner for a policy whose engine is another program: it learns here, and writes its weights down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_lab.policy.base import LossRow, SharedWeight, UpdateResult
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.policy.torch.batch import token_logprobs
from lightning_lab.policy.torch.checkpoint import load_checkpoint, save_checkpoint
from lightning_lab.policy.torch.forward import Forward
from lightning_lab.policy.torch.learner import TorchLearner
from lightning_lab.policy.torch.llama import best_forward
from lightning_lab.policy.torch.model import context_length, load_model, quiet
from lightning_lab.policy.torch.sending import Sender, described, parts
from lightning_lab.policy.torch.sharing import shared
from lightning_lab.records import Floats, Sample
from lightning_lab.tokens import ChatCodec


class DetachedTorchLearner:
    """`TorchLearner` on a model of its own, on one device.

    ``threads``: of an update on a CPU; by default what torch takes.
    """

    def __init__(
        self, model: str | Path, *, device: str = "cpu", dtype: str = "float32", threads: int | None = None
    ) -> None:
        self._name, self._device, self._dtype = model, device, getattr(torch, dtype)
        self._threads = threads
        self._sender = Sender()
        self._started = False

    def start(self) -> None:
        if self._started:
            return
        directory = resolve_model(self._name)
        self._codec = ChatCodec(directory)
        self._model = load_model(directory, device=self._device, dtype=self._dtype)
        self._forward: Forward = best_forward(self._model, context_length(self._model, None))
        self._learner = TorchLearner(self._model, self._forward)
        self._started = True

    def close(self) -> None:
        """The weights go with the object."""
        self.leave()

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        self.start()
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads or before)
        try:
            return self._learner.update(micro_batches, loss=loss, options=options, learning_rate=learning_rate)
        finally:
            torch.set_num_threads(before)

    def export(self, directory: Path) -> None:
        self.start()
        with quiet():
            self._model.save_pretrained(directory)
        for name in (
            "config.json",
            "generation_config.json",
        ):  # the model's own say it as the engine's library reads it
            (directory / name).unlink(missing_ok=True)

    def share(self) -> Iterator[Sequence[SharedWeight]]:
        self.start()
        yield [shared(name, weight.detach()) for name, weight in self._model.named_parameters()]
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]

    def invite(self, receivers: int, *, towards: str, deadline_s: float) -> Mapping[str, Any]:
        self.start()
        towards, device = towards or "localhost", self._model.device
        return self._sender.invite(receivers, towards=towards, device=device, deadline_s=deadline_s)

    def gather(self) -> bool:
        return self._sender.gather()

    def leave(self) -> None:
        self._sender.leave()

    def send(self) -> Iterator[Sequence[SharedWeight]]:
        for part in parts(self._model.named_parameters()):
            yield described(part)
            self._sender.send(part)

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample], *, temperature: float) -> Sequence[Floats]:
        self.start()
        return [self._logprobs(sample, temperature) for sample in samples]

    def save(self, directory: Path) -> None:
        self.start()
        save_checkpoint(directory, self._model, self._codec, self._learner.optimizer, {})

    def load(self, directory: Path) -> None:
        self.start()
        load_checkpoint(directory, self._model, self._codec, self._learner.optimizer)

    def _logprobs(self, sample: Sample, temperature: float) -> Floats:
        found = np.full(len(sample.ids), np.nan, np.float32)
        trained = np.flatnonzero(sample.mask)
        if not len(trained):
            return found
        ids = torch.as_tensor(sample.ids, dtype=torch.long, device=self._model.device)[None]
        logits = self._model(input_ids=ids[:, :-1], use_cache=False).logits[0, trained - 1].float()
        found[trained] = token_logprobs(logits / temperature, ids[0, trained], entropy_gradient=False)[0].cpu().numpy()
        return found
