"""What a wire protocol is to the gateway: it reads a request, and it writes the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from lightning_lab.gateway.errors import Fault
from lightning_lab.records import Ids, Message, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request in canonical form."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """In the shape of Chat Completions: ``{"type": "function", "function": {"name", "description", "parameters"}}``."""
    prompt: str | Ids | None = None
    """Completions only: the raw prompt, to be used instead of a rendered conversation."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Sampling fields, as sent."""
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    """Chat streams only: end with a chunk that carries the usage."""
    logprobs: bool = False
    body: Mapping[str, Any] = field(default_factory=dict)
    """The whole request, for what an answer echoes."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the gateway does not interpret, and what it left out."""
    signatures: Mapping[int, str] = field(default_factory=dict)
    """Echoed `Head.reasoning_id`, by the index of the assistant message that it came with."""


@dataclass(slots=True, kw_only=True)
class Head:
    """What is known of an answer before anything is sampled."""

    id: str
    """Minted: the protocol's prefix and a name that sorts by time."""
    created: int
    """Unix seconds."""
    model: str
    request: Request
    used: Sampling
    prompt_tokens: int
    """0 until they are counted, where an endpoint renders by itself."""

    @property
    def suffix(self) -> str:
        """The name in the id: further ids of the same answer are made from it."""
        return self.id.rpartition("_" if "_" in self.id else "-")[2]

    @property
    def reasoning_id(self) -> str:
        """What stands for encrypted reasoning: an id that only this gateway can resolve when a client echoes it."""
        return f"ll_reasoning_{self.suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One finished reply."""

    message: Message
    """Its tool calls carry minted ids."""
    text: str
    """The message as plain text, tool calls unparsed: what Completions answers."""
    finish_reason: str
    """``stop`` or ``length``."""
    stopped_by: str = ""
    """The stop text that ended the reply; it is not part of the message."""
    sampled_tokens: int
    tokens: Sequence[tuple[str, float]] = ()
    """Text and log-prob of every sampled token, where the request asked for them."""


class Stream(Protocol):
    """The events of one streamed answer, in order."""

    def opening(self) -> bytes:
        """The first events; sent before the reply is known when that takes long."""
        ...

    def beat(self) -> bytes:
        """Something that keeps a silent stream alive and changes nothing."""
        ...

    def progress(self, sure: Message) -> bytes:
        """What is sure of the only reply's content and reasoning, as far as it was not told yet.

        Once there is content, the reasoning is complete.
        """
        ...

    def closing(self, choices: Sequence[Choice]) -> bytes:
        """The reply, as far as it was not told yet, to the last event."""
        ...

    def failure(self, fault: Fault) -> bytes:
        """The event that ends a stream after early headers."""
        ...


class Wire(Protocol):
    """One protocol."""

    name: str
    """As in `Call.protocol`."""
    answer_prefix: str
    """Of minted answer ids, e.g. ``resp_``."""
    tool_prefix: str
    """Of minted tool-call ids, e.g. ``call_``."""
    signs_reasoning: bool
    """Whether reasoning goes out with an opaque id that clients echo (`Head.reasoning_id`)."""
    parses_arguments: bool
    """Whether tool arguments travel as JSON values, so that a client cannot echo the characters that were said."""

    def read(self, body: Mapping[str, Any]) -> Request:
        """Raises `Fault` 400."""
        ...

    def answer(self, head: Head, choices: Sequence[Choice]) -> Mapping[str, Any]: ...

    def stream(self, head: Head) -> Stream: ...

    def error(self, fault: Fault) -> Mapping[str, Any]:
        """The body of an answer that says what went wrong."""
        ...


def error_body(fault: Fault) -> dict[str, Any]:
    """The error shape that all OpenAI protocols share."""
    return {"error": {"message": fault.message, "type": fault.type, "param": fault.param, "code": fault.code}}


def data_event(payload: Mapping[str, Any]) -> bytes:
    """One server-sent event without a name."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


_NO_LOGPROB = -9999.0
"""OpenAI's number for a log-prob that is not known."""


def shown_logprob(value: float) -> float:
    """A log-prob as a JSON number."""
    return value if math.isfinite(value) else _NO_LOGPROB


class Told:
    """How much of each growing text a stream has told."""

    def __init__(self) -> None:
        self._characters: dict[Any, int] = {}

    def more(self, part: Any, text: str) -> list[str]:
        """The deltas that bring ``part`` to ``text``."""
        fresh = text[self._characters.get(part, 0) :]
        self._characters[part] = len(text)
        return pieces(fresh)


PIECE = 2000
"""Characters in one streamed delta: some clients limit the length of a line."""


def pieces(text: str) -> list[str]:
    """``text`` cut into deltas."""
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
