"""OpenAI Completions: raw text in, raw text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_lab.gateway.errors import Fault, bad_request
from lightning_lab.gateway.protocols import fields
from lightning_lab.gateway.protocols.chat import SAMPLING_FIELDS, most_tokens, usage
from lightning_lab.gateway.protocols.wire import Choice, Head, Request, Told, data_event, error_body, shown_logprob
from lightning_lab.records import Ids, Message

_KNOWN = frozenset(SAMPLING_FIELDS) | {"model", "prompt", "stream", "stream_options", "logprobs"}


class Completions:
    """``POST /v1/completions``, one prompt a request: text or token ids."""

    name = "completions"
    answer_prefix = "cmpl-"
    tool_prefix = "call_"
    signs_reasoning = False
    parses_arguments = False

    def read(self, body: Mapping[str, Any]) -> Request:
        prompt = _prompt(body.get("prompt"))
        options = fields.options(body, "stream_options")
        return Request(
            model=fields.text(body, "model"),
            messages=(Message(role="user", content=prompt),) if isinstance(prompt, str) else (),
            prompt=prompt,
            asked=fields.asked(body, SAMPLING_FIELDS),
            stop=fields.stops(body),
            max_tokens=most_tokens(body),
            n=fields.count(body, "n", most=128) or 1,
            stream=fields.flag(body, "stream"),
            include_usage=fields.flag(options, "include_usage"),
            logprobs=body.get("logprobs") is not None,
            body=body,
            extra=fields.rest(body, _KNOWN),
        )

    def answer(self, head: Head, choices: Sequence[Choice]) -> dict[str, Any]:
        return _envelope(head, [_choice(head, at, choice) for at, choice in enumerate(choices)]) | {
            "usage": usage(head, choices)
        }

    def stream(self, head: Head) -> CompletionsStream:
        return CompletionsStream(head)

    def error(self, fault: Fault) -> dict[str, Any]:
        return error_body(fault)


class CompletionsStream:
    """Chunks of one answer, ended by ``[DONE]``."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._told = Told()

    def opening(self) -> bytes:
        return self.beat()

    def beat(self) -> bytes:
        return b": keep-alive\n\n"

    def progress(self, sure: Message) -> bytes:
        """A raw reply has no thoughts: what becomes of the text beside one is known at the end."""
        return b"" if sure.reasoning else b"".join(self._texts(0, sure.content))

    def closing(self, choices: Sequence[Choice]) -> bytes:
        out: list[bytes] = []
        for at, choice in enumerate(choices):
            out += self._texts(at, choice.text)
            out.append(data_event(_envelope(self._head, [_choice(self._head, at, choice) | {"text": ""}])))
        if self._head.request.include_usage:
            out.append(data_event(_envelope(self._head, []) | {"usage": usage(self._head, choices)}))
        out.append(b"data: [DONE]\n\n")
        return b"".join(out)

    def failure(self, fault: Fault) -> bytes:
        return data_event(error_body(fault))

    def _texts(self, index: int, text: str) -> list[bytes]:
        shape = {"index": index, "logprobs": None, "finish_reason": None}
        return [data_event(_envelope(self._head, [{**shape, "text": piece}])) for piece in self._told.more(index, text)]


def _prompt(value: Any) -> str | Ids:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]  # a batch of one
    if isinstance(value, str) and value:
        return value
    items = [] if value == "" else fields.array(value, "prompt")
    if items and isinstance(items[0], str | list):
        raise bad_request("Only one prompt a request is supported.", param="prompt", code="unsupported_parameter")
    if not items or not all(fields.is_integer(one) and 0 <= one < 2**31 for one in items):
        raise bad_request("prompt must be a string or an array of token ids, and not empty.", param="prompt")
    return np.asarray(items, dtype=np.int32)


def _choice(head: Head, index: int, choice: Choice) -> dict[str, Any]:
    return {
        "index": index,
        "text": choice.text,
        "logprobs": _logprobs(choice) if head.request.logprobs else None,
        "finish_reason": choice.finish_reason,
    }


def _logprobs(choice: Choice) -> dict[str, Any]:
    offsets, at = [], 0
    for text, _ in choice.tokens:
        offsets.append(at)
        at += len(text)
    return {
        "tokens": [text for text, _ in choice.tokens],
        "token_logprobs": [shown_logprob(value) for _, value in choice.tokens],
        "top_logprobs": None,
        "text_offset": offsets,
    }


def _envelope(head: Head, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }
