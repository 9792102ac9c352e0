"""`VllmPolicy`: vLLM servers answer, a learner of its own learns, and each publish takes its weights to the servers."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lightning_lab.policy.base import (
    Beginning,
    Chunk,
    ContextOverflowError,
    DetachedLearner,
    LossRow,
    PolicyError,
    PromptError,
    Rendered,
    RenderError,
    SeatsServers,
    UpdateResult,
)
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.policy.engines.installing import located
from lightning_lab.policy.vllm.choice import transfer_of
from lightning_lab.policy.vllm.errors import PublishError
from lightning_lab.policy.vllm.fleet import Fleet, private_directory
from lightning_lab.policy.vllm.parity import PROBE_SAMPLING, PROBE_TOKENS, parity, probe_sample, probes_of
from lightning_lab.policy.vllm.places import own_places, places
from lightning_lab.policy.vllm.replicas import Replica
from lightning_lab.policy.vllm.settings import Settings
from lightning_lab.policy.vllm.weights import Weights, weights_digest
from lightning_lab.policy.vllm.wire import chat_body, derender_body, message_of
from lightning_lab.records import Ids, Message, Sampling
from lightning_lab.tokens import ChatCodec, TemplateError, TokenizerError

_log = logging.getLogger(__name__)

_STATE = "engine.json"


class VllmPolicy:
    """``replicas`` vLLM servers on this machine, or servers that run already (``url``).

    ``learner`` learns beside them; without one the policy only answers. Where ``tool_parser`` or ``reasoning_parser``
    names one of vLLM's own, the servers render the conversations and parse the replies; else the lab does both, as for
    the embedded policy. ``dtype``: by default float32 on a CPU and bfloat16 on a GPU. ``collocated``: the servers sleep
    during updates, whose memory they share. ``transfer``: how published weights reach servers that run: as ``files``,
    by ``ipc`` from the memory of a learner on the same GPUs, or by ``nccl``: sent by a learner on other GPUs or other
    machines (over gloo where it is on a CPU). The files are written in any case, for servers that are started.
    ``options``: further arguments of ``vllm serve`` by their own names.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        learner: DetachedLearner | None = None,
        url: str | Sequence[str] = (),
        api_key: str = "",
        replicas: int = 1,
        chat_template: str | Path | None = None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        dtype: str | None = None,
        context_length: int | None = None,
        seed: int = 0,
        kv_bytes: int | None = None,
        threads: int | None = None,
        collocated: bool = False,
        transfer: Literal["files", "ipc", "nccl"] = "files",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = f"vllm:{Path(model).name}"
        self.can_learn = learner is not None
        self._model_name, self._chat_template = model, chat_template
        self._learner, self._collocated = learner, collocated
        self._transfer = transfer_of(transfer, learner, collocated=collocated)
        self._urls, self._key = [url] if isinstance(url, str) else list(url), api_key
        self._count, self._asked_context = replicas, context_length
        self._served = tool_parser is not None or reasoning_parser is not None
        if not self._served:
            self.beginning = self._beginning
        self._asked: dict[str, Any] = {
            "dtype": dtype,
            "seed": seed,
            "kv_bytes": kv_bytes,
            "threads": threads,
            "tool_parser": tool_parser,
            "reasoning_parser": reasoning_parser,
            "transfer": self._transfer.engine if self._transfer else None,
            "unpickles": self._transfer is not None and self._transfer.pickles,
            "options": dict(options or {}),
        }
        self._started = self._closed = False
        self._fleet: Fleet | None = None
        self._probes: list[Ids] = []

    @property
    def version(self) -> int:
        return self._fleet.version if self._fleet else 0

    @property
    def replicas(self) -> Sequence[Replica]:
        """The servers, for looking at them."""
        return self._servers.replicas

    @property
    def context_length(self) -> int:
        self.start()
        return self._context

    @property
    def codec(self) -> ChatCodec | None:
        """Conversation ↔ ids without the servers, from any process; None where they render and parse themselves."""
        self.start()
        return None if self._served else self._codec

    def start(self) -> None:
        """Start the servers and the learner, and wait until they answer. Idempotent. Raises `PolicyError`."""
        if self._closed:
            raise PolicyError("This policy is closed. Make a new one.")
        if self._started:
            return
        directory = resolve_model(self._model_name)
        try:
            self._codec = ChatCodec(directory, chat_template=self._chat_template)
        except TokenizerError as error:
            raise PolicyError(str(error)) from error
        self._context = _context_length(directory, self._asked_context)
        self._directory = private_directory()
        self._weights = Weights(directory, self._directory / "weights")
        self._fleet = Fleet(
            self._weights,
            stop_ids=self._codec.stop_ids,
            warm_up=self._codec.encode("a"),
            transfer=self._transfer,
        )
        try:
            if self._urls:
                self._fleet.attach(self._urls, self._key)
            else:
                self._start_servers(self._fleet)
            if self._learner is not None:
                self._learner.start()
        except BaseException:
            self._stop(self._fleet)
            raise
        self._started = True

    def close(self) -> None:
        """End the servers that were started here. Idempotent."""
        self._closed = True
        if self._started and self._fleet is not None:
            self._started = False
            self._stop(self._fleet)
            if self._learner is not None:
                self._learner.close()

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        self.start()
        if self._served:
            answer = self._servers.ask("/v1/chat/completions/render", chat_body(messages, tools))
            return Rendered(ids=np.asarray(answer["token_ids"], np.int32))
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
        said = self._codec.without_end(ids)  # which vLLM's parsers would show as text
        if not self._served or not len(said):
            return self._codec.parse(ids)
        body = derender_body(said, tools)
        return message_of(self._servers.ask("/v1/chat/completions/derender", body))

    def _beginning(self) -> Beginning:
        """See `TellsEarly`."""
        self.start()
        return self._codec.beginning()

    def decode(self, ids: Ids) -> str:
        self.start()
        return self._codec.decode(ids)

    async def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        """Where the servers parse replies, each comes whole: nothing is sure of it before. See `Policy.generate`."""
        self.start()
        room = self._context - len(prompt)
        if room < 1:
            raise ContextOverflowError(
                f"The prompt has {len(prompt)} tokens, and {self.name} reads at most {self._context} with its reply. "
                "Shorten the conversation, or use a longer context_length."
            )
        if len(prompt) == 0:
            raise PromptError("The prompt is empty: there is nothing to continue.")
        limit = room if sampling.max_tokens is None else max(1, min(room, sampling.max_tokens))
        reply = self._servers.replies.to(rollout_id, prompt, sampling, limit=limit, early=not self._served)
        async with contextlib.aclosing(reply):
            async for chunk in reply:
                yield chunk

    def fingerprint(self) -> Mapping[str, str]:
        self.start()
        return {"model": weights_digest(self._weights.current), **self._codec.fingerprint()}

    def freeze(self) -> None:
        """Sample nothing more; open generations stay open in the servers. Idempotent."""
        self._servers.standing.freeze()

    def thaw(self) -> None:
        """Go on where `freeze` stopped. Idempotent."""
        self._servers.standing.thaw()

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        """One step of the learner; servers that share its memory sleep meanwhile."""
        self._probes = probes_of(micro_batches) or self._probes
        if self._collocated:
            self._servers.standing.sleep()
        return self._own_learner.update(micro_batches, loss=loss, options=options, learning_rate=learning_rate)

    def publish(self, version: int) -> Mapping[str, float]:
        """Take the learned weights to the servers; what they cached of earlier ones is dropped.

        Returns ``publish_s``, ``pause_s`` (of it, in which nothing was sampled), ``parity_logprob_mean`` and
        ``parity_logprob_max``. Raises `PublishError`; then the earlier version samples on.
        """
        if version <= self.version:
            raise PolicyError(f"Version {version} was used already: the policy samples with version {self.version}.")
        began = time.perf_counter()
        directory = self._export(version)
        paused = time.perf_counter()
        self._servers.switch(directory, version)
        ended = time.perf_counter()
        return {"publish_s": ended - began, "pause_s": ended - paused, **self._parity()}

    def save(self, directory: Path) -> None:
        """What the learner saves, and the version."""
        self._own_learner.save(Path(directory))
        (Path(directory) / _STATE).write_text(json.dumps({"version": self.version}), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Go back to a checkpoint. The version never falls; publish the next one before sampling on."""
        self.start()
        self._own_learner.load(Path(directory))
        saved = json.loads((Path(directory) / _STATE).read_text(encoding="utf-8"))
        version = max(self.version, int(saved["version"]))
        self._servers.switch(self._export(version), version)

    @property
    def _own_learner(self) -> DetachedLearner:
        if self._learner is None:
            raise PolicyError(f"{self.name} has no learner: it only answers. Give one with learner=….")
        return self._learner

    @property
    def _servers(self) -> Fleet:
        self.start()
        assert self._fleet is not None
        return self._fleet

    def _export(self, version: int) -> Path:
        self.start()
        try:
            return self._weights.prepare(version, self._own_learner.export)
        except (OSError, PublishError) as error:
            raise PublishError(f"Version {version} was not published, {self.version} samples on: {error}") from error

    def _parity(self) -> Mapping[str, float]:
        """Of what the servers sample now, on what was just learned; nothing where one dies over it: it is published."""
        try:
            replies = self._servers.replies.to_all(self._probes, PROBE_SAMPLING, limit=PROBE_TOKENS)
        except PolicyError:
            _log.exception("Log-prob parity could not be measured")
            return {}
        samples = [probe_sample(prompt, reply) for prompt, reply in zip(self._probes, replies, strict=True)]
        return parity(samples, self._own_learner.logprobs(samples, temperature=PROBE_SAMPLING.temperature))

    def _start_servers(self, fleet: Fleet) -> None:
        environment = located("vllm")
        template = None
        if self._served:
            template = self._directory / "chat_template.jinja"
            template.write_text(self._codec.server_template(), encoding="utf-8")
        asked = {**self._asked, "dtype": self._asked["dtype"] or ("float32" if environment.cpu else "bfloat16")}
        settings = Settings(cpu=environment.cpu, context_length=self._context, chat_template=template, **asked)
        fleet.start(self._places(settings), self._directory, environment.python, settings)

    def _places(self, settings: Settings) -> Sequence[Mapping[str, str]]:
        """Of the servers; beside a learner that keeps places for them, which starts first then."""
        if self._collocated and isinstance(self._learner, SeatsServers):
            self._learner.start()
            return places(self._learner.seats, self._count)
        return own_places(self._count, settings.devices, os.environ.get("CUDA_VISIBLE_DEVICES"))

    def _stop(self, fleet: Fleet) -> None:
        fleet.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _context_length(directory: Path, asked: int | None) -> int:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    own = int({**config, **config.get("text_config", {})}.get("max_position_embeddings") or 2048)
    return min(own, asked or own)
