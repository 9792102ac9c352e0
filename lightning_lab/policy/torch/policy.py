"""`TorchPolicy`: the Policy and Learner protocols over the engine and the learner."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lightning_lab.policy.base import (
    Beginning,
    Chunk,
    ContextOverflowError,
    LossRow,
    PolicyError,
    PromptError,
    Rendered,
    RenderError,
    UpdateResult,
)
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.policy.torch.checkpoint import load_checkpoint, save_checkpoint
from lightning_lab.policy.torch.engine import Engine
from lightning_lab.policy.torch.forward import Forward, Reader
from lightning_lab.policy.torch.generation import Generation
from lightning_lab.policy.torch.kv import KvSlots
from lightning_lab.policy.torch.learner import TorchLearner
from lightning_lab.policy.torch.llama import best_forward
from lightning_lab.policy.torch.model import context_length, kv_bytes_per_token, load_model, weights_hash
from lightning_lab.records import Ids, Message, Sampling
from lightning_lab.tokens import ChatCodec, TemplateError, TokenizerError

_SMALL_MODEL = 10_000_000


class TorchPolicy:
    """A Hugging Face causal LM in this process, sampled by one thread and trained on the same weights.

    ``model``: ``"quickstart"``, ``"smollm2"`` or the path of a model directory. ``context_length`` lowers the
    model's own. ``seed`` decides what requests without a seed of their own sample, in the order they arrive.
    ``dtype`` is what the learner trains in; a ``sampling_dtype`` of its own makes the engine sample from a copy, made
    at each publish. ``kv_bytes`` bounds keys and values: where more rows would not fit, requests wait.
    ``train_threads``: by default one for models below ten million parameters, where splitting an operation costs more
    than it saves, else all cores.
    """

    can_learn = True

    def __init__(
        self,
        model: str | Path = "quickstart",
        *,
        chat_template: str | Path | None = None,
        device: str = "cpu",
        dtype: str | torch.dtype = "float32",
        sampling_dtype: str | torch.dtype | None = None,
        seed: int = 0,
        max_batch: int = 64,
        context_length: int | None = None,
        train_threads: int | None = None,
        kv_bytes: int = 2 << 30,
    ) -> None:
        self.name = f"torch:{Path(model).name}"
        self.seed = seed
        self._model_name, self._chat_template = model, chat_template
        self._device, self._dtype = device, _dtype(dtype)
        self._sampling_dtype = self._dtype if sampling_dtype is None else _dtype(sampling_dtype)
        self._max_batch, self._asked_context = max_batch, context_length
        self._kv_bytes = kv_bytes
        self._train_threads = train_threads
        self._lock = threading.Lock()
        self._started = self._closed = False
        self._version = 0
        self._submitted = 0

    @property
    def version(self) -> int:
        return self._version

    @property
    def context_length(self) -> int:
        self.start()
        return self._context

    def start(self) -> None:
        """Load tokenizer and weights and start sampling. Idempotent. Raises `PolicyError`."""
        with self._lock:
            if self._closed:
                raise PolicyError("This policy is closed. Make a new one.")
            if not self._started:
                self._load()
                self._started = True

    def close(self) -> None:
        """Stop the engine; open replies get a `PolicyError`. Idempotent."""
        with self._lock:
            self._closed = True
            if self._started:
                self._engine.close()

    @property
    def codec(self) -> ChatCodec:
        """Its tokenizer and template; a gateway in another process takes a copy."""
        self.start()
        return self._codec

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        self.start()
        try:
            return Rendered(ids=self._codec.render(messages, tools))
        except TemplateError as error:
            raise RenderError(str(error)) from error

    def encode(self, text: str) -> Ids:
        """Raw text → ids, for prompts that are no conversation."""
        self.start()
        return self._codec.encode(text)

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        self.start()
        return self._codec.parse(ids)

    def beginning(self) -> Beginning:
        """See `TellsEarly`."""
        self.start()
        return self._codec.beginning()

    def decode(self, ids: Ids) -> str:
        self.start()
        return self._codec.decode(ids)

    def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        """Sample a reply; errors about the request itself are raised here, before anything is awaited.

        Log-probs are those of the filtered, tempered distribution; at temperature 0 they are 0. A stop text ends
        the reply and is part of its ids.
        """
        self.start()
        room = self._context - len(prompt)
        if room < 1:
            raise ContextOverflowError(
                f"The prompt has {len(prompt)} tokens, and {self.name} reads at most {self._context} with its reply. "
                "Shorten the conversation, or use a model with a longer context."
            )
        if len(prompt) == 0:
            raise PromptError("The prompt is empty: there is nothing to continue.")
        if not 0 <= int(prompt.min()) <= int(prompt.max()) < self._vocabulary:  # it would fail a whole batch
            raise PromptError(
                f"The prompt has ids from {prompt.min()} to {prompt.max()}, and {self.name} knows 0 to "
                f"{self._vocabulary - 1}. They are another model's."
            )
        limit = room if sampling.max_tokens is None else max(1, min(room, sampling.max_tokens))
        return self._stream(prompt, sampling, limit)

    async def _stream(self, prompt: Ids, sampling: Sampling, limit: int) -> AsyncIterator[Chunk]:
        arrived: asyncio.Queue[Chunk | Exception] = asyncio.Queue()
        generation = Generation(
            prompt=prompt,
            sampling=sampling,
            limit=limit,
            seed=self._request_seed(sampling),
            deliver=arrived.put_nowait,
            loop=asyncio.get_running_loop(),
        )
        finished = False
        self._engine.submit(generation)
        try:
            while not finished:
                item = await arrived.get()
                finished = isinstance(item, Exception) or item.finish_reason is not None
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if not finished:
                self._engine.cancel(generation)

    def fingerprint(self) -> Mapping[str, str]:
        self.start()
        with self._engine.weights:
            return {"model": weights_hash(self._model.state_dict()), **self._codec.fingerprint()}

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        """One optimiser step on the sampling weights, while the engine stands still. See `TorchLearner.update`."""
        self.start()
        with self._engine.weights, self._learner_threads():
            return self._learner.update(micro_batches, loss=loss, options=options, learning_rate=learning_rate)

    def check(self, rows: Sequence[LossRow]) -> None:
        """Raises `SampleError` for ids outside the vocabulary."""
        self._learner.check(rows)

    def publish(self, version: int) -> Mapping[str, float]:
        """Sample with the learned weights (in place already where they are shared); what old ones read is dropped."""
        self.start()
        if version <= self._version:
            raise PolicyError(f"Version {version} was used already: the policy samples with version {self._version}.")
        with self._engine.weights:
            self._refresh_sampled()
            self._engine.publish(version)
            self._version = version
        return {}

    def save(self, directory: Path) -> None:
        """Weights, optimiser moments, version and random state; the directory is a model directory as well."""
        self.start()
        with self._engine.weights:
            state = {"version": self._version, "seed": self.seed, "submitted": self._submitted}
            save_checkpoint(Path(directory), self._model, self._codec, self._learner.optimizer, state)

    def load(self, directory: Path) -> None:
        """Go back to a checkpoint. The version never falls; publish the next one before sampling on.

        Raises `CheckpointError` for a damaged checkpoint or another model's.
        """
        self.start()
        with self._engine.weights:
            state = load_checkpoint(Path(directory), self._model, self._codec, self._learner.optimizer)
            self.seed, self._submitted = int(state["seed"]), int(state["submitted"])
            self._version = max(self._version, int(state["version"]))
            self._refresh_sampled()
            self._engine.publish(self._version)

    def _load(self) -> None:
        directory = resolve_model(self._model_name)
        try:
            self._codec = ChatCodec(directory, chat_template=self._chat_template)
        except TokenizerError as error:
            raise PolicyError(str(error)) from error
        self._model = load_model(directory, device=self._device, dtype=self._dtype)
        self._context = context_length(self._model, self._asked_context)
        self._vocabulary = int(self._model.get_input_embeddings().weight.shape[0])
        forward = sampling_forward = best_forward(self._model, self._context)
        self._sampled = self._model
        if self._sampling_dtype != self._dtype:
            self._sampled = copy.deepcopy(self._model).to(self._sampling_dtype)
            sampling_forward = best_forward(self._sampled, self._context)
        self._learner = TorchLearner(self._model, forward)
        self._engine = self._make_engine(sampling_forward)
        self._engine.start()

    def _make_engine(self, forward: Forward) -> Engine:
        kv = KvSlots(
            int(self._sampled.config.get_text_config().num_hidden_layers),
            max_rows=self._max_batch,
            max_length=self._context,
            max_tokens=self._kv_bytes // kv_bytes_per_token(self._sampled),
        )
        return Engine(
            Reader(forward, kv, dtype=self._sampled.dtype, device=self._sampled.device),
            max_batch=self._max_batch,
            stop_ids=self._codec.stop_ids,
            decode=self._codec.decode,
            version=self._version,
        )

    @torch.no_grad()
    def _refresh_sampled(self) -> None:
        """Nothing to do where engine and learner share their weights."""
        if self._sampled is not self._model:
            for target, source in zip(self._sampled.parameters(), self._model.parameters(), strict=True):
                target.copy_(source)

    @contextmanager
    def _learner_threads(self) -> Iterator[None]:
        """The engine stands still, so a large model may use every core. The setting belongs to the calling thread."""
        small = self._model.num_parameters() < _SMALL_MODEL
        before = torch.get_num_threads()
        torch.set_num_threads(self._train_threads or (1 if small else os.cpu_count() or 1))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _request_seed(self, sampling: Sampling) -> tuple[int, ...]:
        """A request's own seed alone decides its reply; without one, the policy's seed and a counter do."""
        if sampling.seed is not None:
            return (abs(sampling.seed),)
        with self._lock:
            self._submitted += 1
            return (self.seed, self._submitted)


def _dtype(name: str | torch.dtype) -> torch.dtype:
    if isinstance(name, torch.dtype):
        return name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise PolicyError(f"There is no floating-point dtype {name!r}. Use 'float32' or 'bfloat16'.")
    return found
