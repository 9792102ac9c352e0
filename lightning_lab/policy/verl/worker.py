"""One rank: verl's training worker, whose passes follow the lab's plan and minimise the lab's objective."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData
from torch import Tensor
from verl.utils.device import get_device_id, get_device_name
from verl.workers.engine import EngineRegistry
from verl.workers.engine_workers import TrainingWorker

from lightning_lab.algorithms.losses import LOSSES
from lightning_lab.policy.base import LossRow, PolicyError, SharedWeight
from lightning_lab.policy.torch.learner_options import StepOptions
from lightning_lab.policy.torch.report import COLUMNS
from lightning_lab.policy.torch.sending import Named, Sender, described, parts
from lightning_lab.policy.torch.sharing import shared
from lightning_lab.policy.verl.config import stored_dtype, worker_config
from lightning_lab.policy.verl.export import WeightFiles
from lightning_lab.policy.verl.messages import RankResult, StepRequest
from lightning_lab.policy.verl.rows import MicroBatch, RowsLoss, at_places, micro_batch
from lightning_lab.policy.verl.settings import Setup
from lightning_lab.records import Floats


class LearnerWorker(TrainingWorker):  # type: ignore[misc]
    """Built and called by `Ranks`; every method is called on all ranks at once."""

    def __init__(self, setup: Setup) -> None:
        """Nothing is loaded yet: of a constructor, Ray tells only that the process died."""
        self._setup = setup
        self._reference: Any = None
        self._sender = Sender()

    def begin(self) -> int:
        """Join the other ranks and load the model → this rank's process id. Raises `SettingsError`."""
        config = worker_config(self._setup)
        _join_ranks()
        super().__init__(config)
        self._dtype = getattr(torch, stored_dtype((self._setup.directory / "config.json").read_text(encoding="utf-8")))
        self.reset()
        return os.getpid()

    def learn(self, micro_batches: Sequence[Sequence[LossRow]], request: StepRequest) -> RankResult:
        """One optimiser step on this rank's micro-batches, of which every rank has as many."""
        if request.loss not in LOSSES:
            raise PolicyError(
                f"The ranks do not know the loss {request.loss!r}: it was registered in the notebook only. Put it into "
                "a module that they can import, and name that: model={'external_lib': 'my_losses'}."
            )
        own, engine = request.own, self.engine
        batches = [micro_batch(rows, own.temperature, torch.device(get_device_id())) for rows in micro_batches]
        references = self._reference_logprobs(batches) if own.kl_coef else [None] * len(batches)
        losses = [
            RowsLoss(batch, reference, own, request.loss, request.loss_options)
            for batch, reference in zip(batches, references, strict=True)
        ]
        with engine.train_mode():
            for group in engine.optimizer.param_groups:
                group["lr"], group["weight_decay"] = request.learning_rate, own.weight_decay
            engine.optimizer_config.clip_grad = own.max_grad_norm
            engine.optimizer_zero_grad()
            for batch, loss in zip(batches, losses, strict=True):
                engine.forward_backward_batch(self._told(batch), loss_function=loss)
            norm = float(engine.optimizer_step()) if batches else 0.0
        return _result(losses, own, norm)

    def logprobs(self, micro_batches: Sequence[Sequence[LossRow]], temperature: float) -> list[Floats]:
        """Log-probs of the trained tokens, by micro-batch and then row by row: [T] each."""
        device = torch.device(get_device_id())
        batches = [micro_batch(rows, temperature, device, entropy=False) for rows in micro_batches]
        return [_numpy(found) for found in self._evaluate(self.engine, batches)]

    def export(self, directory: Path) -> None:
        """Rank 0 writes the whole weights; the others hand it their parts."""
        files = WeightFiles(directory) if self.rank == 0 else None
        for name, tensor in self._whole():
            if files is not None:
                files.add(name, tensor.to("cpu", self._dtype))
        if files is not None:
            files.close()

    def share(self, first: bool) -> list[SharedWeight]:
        """The next weights, whole, in this rank's GPU memory, where they stay until the next are asked for."""
        return [shared(name, tensor) for name, tensor in self._next(first)]

    def invite(self, receivers: int, towards: str, deadline_s: float) -> Mapping[str, Any] | None:
        """Rank 0 sends for all."""
        if self.rank != 0:
            return None
        device = torch.device(get_device_id())
        return self._sender.invite(receivers, towards=towards, device=device, deadline_s=deadline_s)

    def gather(self) -> bool:
        return self.rank != 0 or self._sender.gather()

    def leave(self) -> None:
        self._sender.leave()

    def offer(self, first: bool) -> list[SharedWeight]:
        """What `send` sends next."""
        return described(self._next(first))

    def send(self) -> None:
        if self.rank == 0:
            self._sender.send(self._lent)

    def _next(self, first: bool) -> list[Named]:
        """Some more of the whole weights on this rank's device, in the dtype that is published; first: from the
        beginning."""
        if first:
            device = get_device_id()
            whole = ((name, tensor.to(device, self._dtype).contiguous()) for name, tensor in self._whole())
            self._parts = parts(whole)
        self._lent: list[Named] = []  # before the next are gathered
        self._lent = next(self._parts, [])
        return self._lent

    def _whole(self) -> Iterator[Named]:
        """All ranks together, one weight after the other; a tied output layer is no weight of its own."""
        named, _ = self.engine.get_per_tensor_param()
        tied = bool(getattr(self.model_config.hf_config, "tie_word_embeddings", False))
        for name, tensor in named:
            if not (tied and name == "lm_head.weight"):
                yield name, tensor.detach()

    def _told(self, batch: MicroBatch) -> Any:
        """With verl's own settings of a pass."""
        for name in ("use_remove_padding", "use_fused_kernels"):
            batch.data[name] = NonTensorData(bool(self.model_config.get(name, False)))
        return batch.data

    def _reference_logprobs(self, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """Of the model as it was loaded: without its adapter, or, trained whole, loaded once more."""
        with ExitStack() as stack:
            engine = self.engine
            if self.model_config.lora_rank:
                stack.enter_context(engine.disable_adapter())
            else:
                engine = self._reference = self._reference or self._load_reference()
            return self._evaluate(engine, batches)

    def _load_reference(self) -> Any:
        config = worker_config(replace(self._setup, forward_only=self._setup.settings.device != "cpu"))
        config.engine_config.use_remove_padding = self.model_config.get("use_remove_padding", False)
        engine = EngineRegistry.new(
            model_type=config.model_type,
            backend=config.engine_config.strategy,
            model_config=config.model_config,
            engine_config=config.engine_config,
            optimizer_config=config.optimizer_config,
            checkpoint_config=config.checkpoint_config,
        )
        engine.initialize()
        return engine

    def _evaluate(self, engine: Any, batches: Sequence[MicroBatch]) -> list[Tensor]:
        """Log-probs of the trained tokens, [T] by micro-batch, without a gradient."""
        found = []
        with engine.eval_mode():
            for batch in batches:
                output = engine.infer_batch(self._told(batch))
                found.append(at_places(output["model_output"]["log_probs"], batch.data.to(get_device_id())))
        return found


def _join_ranks() -> None:
    """verl would name gloo twice, once for CPUs and once for the device, which torch refuses."""
    if get_device_name() == "cpu" and not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
        )


def _result(losses: Sequence[RowsLoss], own: StepOptions, norm: float) -> RankResult:
    found = [loss.found for loss in losses if loss.found is not None]
    return RankResult(
        columns={
            name: np.concatenate([_numpy(one.columns[name]) for one in found] or [np.zeros(0, np.float32)])
            for name in COLUMNS
        },
        masked={name: sum(one.masked[name] for one in found) for name in own.corrections},
        loss=sum(float(one.value.detach()) for one in found),
        grad_norm=norm,
    )


def _numpy(values: Tensor) -> Floats:
    return np.asarray(values.detach().float().cpu().numpy())
