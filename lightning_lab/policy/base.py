"""What every policy is: three steps to answer a call, three to learn.

``render → generate → parse`` answers, whether the model runs in this process or on a server.
``update → publish`` learns; ``save`` and ``load`` make it durable. A policy that only answers raises
`PolicyError` from the learning half and says so in ``can_learn``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

from lightning_lab.records import Floats, Ids, Message, Sample, Sampling


class PolicyError(RuntimeError):
    """The policy could not do what was asked; the message says why and what to do."""


class ContextOverflowError(PolicyError):
    """Prompt and reply do not fit into the model's context."""


class RenderError(PolicyError):
    """The chat template cannot express this conversation."""


class RefusedError(PolicyError):
    """A chat-level endpoint does not accept this conversation; sending it again is of no use."""


class SampleError(PolicyError):
    """The learner can make nothing of these samples; nothing was changed. ``reason`` says it in one word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PromptError(PolicyError):
    """These ids are no prompt for this model: the request is wrong, not the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A conversation as the ids that the model reads, generation prompt included."""

    ids: Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Newly sampled tokens of one generation. All arrays are aligned, shape [n], n may be 0 in the last chunk."""

    ids: Ids
    logprobs: Floats
    versions: Ids
    finish_reason: str | None = None
    """``stop``, ``length`` or ``abort`` on the last chunk, else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """A sample with what the algorithm decided for it."""

    sample: Sample
    advantage: float
    token_weight: float
    """Factor of every mask-1 token's loss term; the normaliser is already inside, so losses only sum."""
    old_logprobs: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """Per-token numbers of one row after the forward pass, aligned with ``sample.ids``; NaN where mask is False."""

    entropy: Floats
    logprobs: Floats
    ratio: Floats
    clipped: Floats
    loss: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What one optimiser update did."""

    metrics: Mapping[str, float]
    tokens: Sequence[TokenStats] = field(default_factory=tuple)
    """In the order of the rows given, when they were asked for."""
    rollout_weights: Mapping[str, float] = field(default_factory=dict)
    """Share of each rollout in the step's weight after off-policy correction, by rollout id."""


@runtime_checkable
class Policy(Protocol):
    """Who generates and who learns."""

    name: str
    can_learn: bool

    @property
    def version(self) -> int:
        """The version that samples now; grows by one at each publish, never used twice."""
        ...

    @property
    def context_length(self) -> int: ...

    def start(self) -> None:
        """Load what is needed to answer. Idempotent. Raises `PolicyError`."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        """Conversation → prompt ids by the chat template. Raises `RenderError`."""
        ...

    def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        """Sample a reply. Closing the iterator cancels the generation.

        Raises `ContextOverflowError`, `PromptError`, `PolicyError`.

        Every chunk carries exact ids, log-probs of the distribution that was really sampled from
        (after temperature), and versions.
        """
        ...

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        """Sampled ids → assistant message (content, reasoning, tool calls without ids). ``tools``: what was offered."""
        ...

    def decode(self, ids: Ids) -> str:
        """Ids → text, special tokens shown."""
        ...

    def fingerprint(self) -> Mapping[str, str]:
        """Hashes of model, tokenizer and template for the manifest."""
        ...


class Beginning(Protocol):
    """Reads one reply while it is being sampled."""

    def read(self, ids: Ids) -> Message:
        """``ids`` more were sampled, shape [n] → what is sure now: `Policy.parse` of the whole reply begins with it."""
        ...


@runtime_checkable
class TellsEarly(Protocol):
    """A policy that knows what is sure of a reply before its end. Others' replies are told whole."""

    def beginning(self) -> Beginning: ...


class EnginePolicy(Policy, Protocol):
    """A policy whose engine is another program.

    Its ``render`` and ``parse`` wait for that program, so they are called in threads; and the engine can stand still
    with replies open.
    """

    def freeze(self) -> None:
        """Sample nothing more; open generations stay open and keep their tokens. Idempotent. Raises `PolicyError`."""
        ...

    def thaw(self) -> None:
        """Go on where `freeze` stopped. Idempotent. Raises `PolicyError`."""
        ...


def has_engine(policy: Policy) -> TypeGuard[EnginePolicy]:
    """Asked for every call: `isinstance` would read every property, also such that ask another process."""
    return hasattr(policy, "freeze")


class ChatReply(Protocol):
    """One reply of a chat-level endpoint. What has arrived may be read at any time, also after a failure."""

    async def listen(self) -> None:
        """Wait for the end; cancelling it ends the generation.

        Raises `ContextOverflowError`, `RefusedError`, `PolicyError`.
        """
        ...

    @property
    def message(self) -> Message:
        """What was said, as the endpoint parsed it."""
        ...

    @property
    def prompt_ids(self) -> Ids:
        """What the model read, shape [m]; -1 for ids that the endpoint does not tell."""
        ...

    @property
    def ids(self) -> Ids:
        """What was sampled, shape [n]; -1 for ids that the endpoint does not tell."""
        ...

    @property
    def logprobs(self) -> Floats:
        """NaN where none was told; of another length than ``ids`` where their places are not known."""
        ...

    @property
    def versions(self) -> Ids:
        """Shape [n]."""
        ...

    @property
    def tokens(self) -> Sequence[tuple[str, float]]:
        """Text and log-prob of the sampled tokens that the endpoint told of."""
        ...

    @property
    def finish_reason(self) -> str | None:
        """``stop`` or ``length``; None before the end."""
        ...

    @property
    def stopped_by(self) -> str:
        """The stop text that ended the reply, where the endpoint tells it."""
        ...

    @property
    def missing(self) -> Sequence[str]:
        """What the endpoint did not tell, of ``prompt_ids``, ``sampled_ids`` and ``logprobs``."""
        ...


@runtime_checkable
class ChatPolicy(Policy, Protocol):
    """A policy that is asked with conversations instead of ids, because it sits behind a server that speaks so.

    Its ``render``, ``generate`` and ``parse`` raise `PolicyError`.
    """

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        steering: Mapping[str, Any],
    ) -> ChatReply:
        """Continue a conversation. ``steering``: further fields of Chat Completions that say what a reply may be."""
        ...

    def complete(self, prompt: str | Ids, sampling: Sampling) -> ChatReply:
        """Continue raw text or ids."""
        ...

    async def count(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> int | None:
        """How many tokens the prompt of a conversation has; None where the server does not tell."""
        ...


@runtime_checkable
class Learner(Protocol):
    """The learning half of a policy; the losses themselves live in ``algorithms``."""

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        """One optimiser step: gradients summed over the micro-batches, clipped, applied."""
        ...

    def publish(self, version: int) -> Mapping[str, float]:
        """Make the learned weights the sampling weights under this version number → metrics about that.

        When it raises, the earlier version samples on.
        """
        ...

    def save(self, directory: Path) -> None:
        """Weights, optimiser and random state. safetensors and JSON only."""
        ...

    def load(self, directory: Path) -> None: ...


@runtime_checkable
class DetachedLearner(Protocol):
    """A learner whose weights an engine elsewhere samples with: it writes them down, and the policy publishes them.

    All methods are called from one thread at a time. Weights have the names, shapes and layout of the Hugging Face
    model that ``start`` loads.
    """

    def start(self) -> None:
        """Load the model. Idempotent. Raises `PolicyError`."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        """As `Learner.update`."""
        ...

    def export(self, directory: Path) -> None:
        """Write the weights as safetensors, ``model*.safetensors`` with an index where they are several, there."""
        ...

    def logprobs(self, samples: Sequence[Sample], *, temperature: float) -> Sequence[Floats]:
        """Log-probs of each sample's mask-1 tokens, shape [n] like ``sample.ids``; NaN where mask is False."""
        ...

    def save(self, directory: Path) -> None:
        """As `Learner.save`."""
        ...

    def load(self, directory: Path) -> None:
        """As `Learner.load`."""
        ...


@dataclass(frozen=True, slots=True)
class Seat:
    """A place beside a learner that is kept for an inference server."""

    host: str
    """Name of its machine."""
    devices: str
    """As ``CUDA_VISIBLE_DEVICES`` names them; empty without GPUs."""


@runtime_checkable
class SeatsServers(Protocol):
    """A learner that keeps places for servers on its own GPUs."""

    @property
    def seats(self) -> Sequence[Seat]: ...


@dataclass(frozen=True, slots=True)
class SharedWeight:
    """A weight that a learner hands to servers."""

    name: str
    dtype: str
    """As torch names it: ``bfloat16``."""
    shape: tuple[int, ...]
    handles: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Where others of the machine may read it: arguments of torch's ``rebuild_cuda_tensor`` by the UUID of a GPU on
    which it lies. None of one that is sent."""


@runtime_checkable
class SharesWeights(Protocol):
    """A learner on the servers' own GPUs, which can hand them its weights there."""

    def share(self) -> Iterator[Sequence[SharedWeight]]:
        """All weights, under the names of the model's files, some at a time: they lie there until the next are asked
        for. Raises `PolicyError` where the learner has no GPU."""
        ...


@runtime_checkable
class SendsWeights(Protocol):
    """A learner that can send its weights to servers on other GPUs or machines, over a process group with them."""

    def invite(self, receivers: int, *, towards: str, deadline_s: float) -> Mapping[str, Any]:
        """Open a group → what its ``receivers`` are told, as JSON has it; the group before is left.

        ``towards``: a host's name, by which the servers are reached; empty where they are on the lab's own machine.
        ``deadline_s``: for all to join, and for what is sent together to arrive. Raises `PolicyError`.
        """
        ...

    def gather(self) -> bool:
        """Whether all have joined, after a moment; asked until they have. Raises `PolicyError` at the deadline."""
        ...

    def leave(self) -> None:
        """Leave the group, so that nobody waits for this end of it. Idempotent."""
        ...

    def send(self) -> Iterator[Sequence[SharedWeight]]:
        """All weights, under the names of the model's files, some at a time: what is named is sent while the next is
        asked for. Raises `PolicyError`."""
        ...


@runtime_checkable
class ChecksSamples(Protocol):
    """A learner that can say beforehand what it cannot learn from."""

    def check(self, rows: Sequence[LossRow]) -> None:
        """Raises `SampleError`."""
        ...
