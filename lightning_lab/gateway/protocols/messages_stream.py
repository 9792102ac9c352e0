"""Anthropic Messages: answers, whole and as the standard sequence of events, and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from lightning_lab.gateway.errors import Fault
from lightning_lab.gateway.protocols.wire import Choice, Head, Told, pieces
from lightning_lab.records import Message

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_THINKING = ("enabled", "adaptive")


def error_body(fault: Fault) -> dict[str, Any]:
    """Anthropic's error shape. Clients recognise an overflow by its words, not by a code."""
    kind = _ERRORS.get(fault.status, "invalid_request_error" if fault.status < 500 else "api_error")
    message = fault.message
    if fault.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def envelope(head: Head, choice: Choice | None = None, content: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The message object; without a choice it is the beginning of one."""
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": list(content),
        "stop_reason": _stop_reason(choice) if choice else None,
        "stop_sequence": (choice.stopped_by or None) if choice else None,
        "usage": {
            "input_tokens": head.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": choice.sampled_tokens if choice else 0,
        },
    }


def content_blocks(head: Head, message: Message) -> list[dict[str, Any]]:
    """A reply as blocks: thinking (where the request enables it), text, tool uses."""
    blocks: list[dict[str, Any]] = []
    if message.reasoning and _wants_thinking(head):
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": head.reasoning_id})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        use = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": _input(call["arguments"])}
        blocks.append(use)
    return blocks


class MessagesStream:
    """Events of one answer."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._told = Told()
        self._places: dict[str, int] = {}
        """Indexes of the blocks that have begun, by kind or id."""
        self._ended: set[int] = set()

    def opening(self) -> bytes:
        return _event("message_start", message=envelope(self._head)) + self.beat()

    def beat(self) -> bytes:
        return _event("ping")

    def progress(self, sure: Message) -> bytes:
        blocks = content_blocks(self._head, sure)
        return b"".join(event for block in blocks for event in self._block(block, "", whole=block is not blocks[-1]))

    def closing(self, choices: Sequence[Choice]) -> bytes:
        choice = choices[0]
        said = iter([call["arguments"] for call in choice.message.tool_calls])
        out: list[bytes] = []
        for block in content_blocks(self._head, choice.message):
            arguments = next(said) if block["type"] == "tool_use" else ""
            out += self._block(block, arguments, whole=True)
        whole = envelope(self._head, choice)
        delta = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
        out.append(_event("message_delta", delta=delta, usage=whole["usage"]))
        out.append(_event("message_stop"))
        return b"".join(out)

    def failure(self, fault: Fault) -> bytes:
        return _event("error", error=error_body(fault)["error"])

    def _block(self, block: Mapping[str, Any], arguments: str, *, whole: bool) -> list[bytes]:
        """What was not told of a block yet, and its end where it is whole."""
        name = block.get("id") or block["type"]
        begun = name in self._places
        index = self._places.setdefault(name, len(self._places))
        if index in self._ended:
            return []
        blank, deltas = self._deltas(name, block, arguments)
        out = [] if begun else [_event("content_block_start", index=index, content_block={**block, **blank})]
        if whole and block["type"] == "thinking":
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        out += [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
        if whole:
            self._ended.add(index)
            out.append(_event("content_block_stop", index=index))
        return out

    def _deltas(
        self, name: str, block: Mapping[str, Any], arguments: str
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """How such a block begins, and what is new of it."""
        if block["type"] == "thinking":
            fresh = self._told.more(name, block["thinking"])
            return {"thinking": "", "signature": ""}, [{"type": "thinking_delta", "thinking": one} for one in fresh]
        if block["type"] == "text":
            return {"text": ""}, [{"type": "text_delta", "text": one} for one in self._told.more(name, block["text"])]
        said = arguments if _parsed(arguments) is not None else orjson.dumps(block["input"]).decode()
        return {"input": {}}, [{"type": "input_json_delta", "partial_json": one} for one in ("", *pieces(said))]


def _event(kind: str, **payload: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **payload}) + b"\n\n"


def _wants_thinking(head: Head) -> bool:
    """Clients that did not ask for thinking blocks read the first block as the answer."""
    thinking = head.request.body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") in _THINKING


def _stop_reason(choice: Choice) -> str:
    if choice.finish_reason == "length":
        return "max_tokens"
    if choice.message.tool_calls:
        return "tool_use"
    return "stop_sequence" if choice.stopped_by else "end_turn"


def _input(arguments: str) -> dict[str, Any]:
    """Arguments as the object that the protocol wants; what is none is wrapped, never dropped."""
    value = _parsed(arguments)
    return {"input": arguments} if value is None else value


def _parsed(arguments: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
