"""OpenAI Responses: answers, whole and as the standard sequence of events."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from lightning_lab.gateway.errors import Fault
from lightning_lab.gateway.protocols.responses_tools import called
from lightning_lab.gateway.protocols.wire import Choice, Head, Told, pieces, shown_logprob
from lightning_lab.records import Message

_INCLUDE_ENCRYPTED = "reasoning.encrypted_content"
_ECHOED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "tool_choice",
    "user",
)


def envelope(
    head: Head, *, output: Sequence[Mapping[str, Any]] = (), choice: Choice | None = None, fault: Fault | None = None
) -> dict[str, Any]:
    """The response object: in progress while there is neither a choice nor a fault."""
    body = head.request.body
    echoed = {key: body.get(key) for key in _ECHOED}
    truncated = choice is not None and choice.finish_reason == "length"
    return echoed | {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "completed_at": int(time.time()) if choice and not truncated else None,
        "status": _status(choice, fault),
        "background": False,
        "error": {"code": "server_error", "message": fault.message} if fault else None,
        "incomplete_details": {"reason": "max_output_tokens"} if truncated else None,
        "metadata": body.get("metadata") or {},
        "model": head.model,
        "output": list(output),
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": head.used.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": head.used.top_p,
        "truncation": "disabled",
        "usage": _usage(head, choice) if choice else None,
    }


def output_items(head: Head, choice: Choice) -> list[dict[str, Any]]:
    """The reply as items: reasoning, message, function calls. Item ids derive from the answer's id."""
    message, items = choice.message, []
    status = "incomplete" if choice.finish_reason == "length" else "completed"
    if message.reasoning:
        items.append(_reasoning_item(head, message.reasoning))
    if message.content or not message.tool_calls:
        items.append(_message_item(head, message.content, status, choice.tokens))
    for place, call in enumerate(message.tool_calls):
        item = {
            "id": f"fc_{head.suffix}_{place}",
            "type": "function_call",
            "status": status,
            "call_id": call["id"],
            **called(call["name"], head.request.extra.get("tools_flattened", [])),
            "arguments": call["arguments"],
        }
        items.append(item)
    return items


_BLANK: Mapping[str, Mapping[str, Any]] = {
    "message": {"content": []},
    "function_call": {"arguments": ""},
    "reasoning": {"summary": []},
}


class ResponsesStream:
    """Events of one answer, numbered from 0."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._next = 0
        self._told = Told()
        self._places: dict[str, int] = {}
        """Indexes of the items that have begun, by id."""
        self._ended: set[str] = set()

    def opening(self) -> bytes:
        response = envelope(self._head)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def beat(self) -> bytes:
        return self._event("response.in_progress", response=envelope(self._head))

    def progress(self, sure: Message) -> bytes:
        items = [_reasoning_item(self._head, sure.reasoning)] if sure.reasoning else []
        items += [_message_item(self._head, sure.content, "completed")] if sure.content else []
        return b"".join(event for item in items for event in self._item(item, whole=item is not items[-1]))

    def closing(self, choices: Sequence[Choice]) -> bytes:
        choice = choices[0]
        items = output_items(self._head, choice)
        out = [event for item in items for event in self._item(item, whole=True)]
        response = envelope(self._head, output=items, choice=choice)
        out.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(out)

    def failure(self, fault: Fault) -> bytes:
        return self._event("response.failed", response=envelope(self._head, fault=fault))

    def _item(self, item: Mapping[str, Any], *, whole: bool) -> list[bytes]:
        """What was not told of an item yet, and its end where it is whole."""
        if item["id"] in self._ended:
            return []
        begun = item["id"] in self._places
        index = self._places.setdefault(item["id"], len(self._places))
        place = {"item_id": item["id"], "output_index": index}
        out = []
        if not begun:
            started = {**item, **_BLANK[item["type"]], "status": "in_progress"}
            out.append(self._event("response.output_item.added", output_index=index, item=started))
        tell = {"message": self._message, "function_call": self._call, "reasoning": self._reasoning}[item["type"]]
        out += tell(place, item, begun, whole)
        if whole:
            self._ended.add(item["id"])
            out.append(self._event("response.output_item.done", output_index=index, item=item))
        return out

    def _message(self, place: Mapping[str, Any], item: Mapping[str, Any], begun: bool, whole: bool) -> list[bytes]:
        part, place = item["content"][0], {**place, "content_index": 0}
        out = []
        if not begun:
            empty = {**part, "text": "", "logprobs": []}
            out.append(self._event("response.content_part.added", **place, part=empty))
        for piece in self._told.more(item["id"], part["text"]):
            out.append(self._event("response.output_text.delta", **place, delta=piece, logprobs=[]))
        if whole:
            done = {"text": part["text"], "logprobs": part["logprobs"]}
            out.append(self._event("response.output_text.done", **place, **done))
            out.append(self._event("response.content_part.done", **place, part=part))
        return out

    def _call(self, place: Mapping[str, Any], item: Mapping[str, Any], begun: bool, whole: bool) -> list[bytes]:
        said = item["arguments"]
        out = [self._event("response.function_call_arguments.delta", **place, delta=piece) for piece in pieces(said)]
        out.append(self._event("response.function_call_arguments.done", **place, name=item["name"], arguments=said))
        return out

    def _reasoning(self, place: Mapping[str, Any], item: Mapping[str, Any], begun: bool, whole: bool) -> list[bytes]:
        part, place, name = item["summary"][0], {**place, "summary_index": 0}, "response.reasoning_summary"
        out = []
        if not begun:
            out.append(self._event(f"{name}_part.added", **place, part={**part, "text": ""}))
        for piece in self._told.more(item["id"], part["text"]):
            out.append(self._event(f"{name}_text.delta", **place, delta=piece))
        if whole:
            out.append(self._event(f"{name}_text.done", **place, text=part["text"]))
            out.append(self._event(f"{name}_part.done", **place, part=part))
        return out

    def _event(self, kind: str, **payload: Any) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._next, **payload})
        self._next += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def _status(choice: Choice | None, fault: Fault | None) -> str:
    if fault is not None:
        return "failed"
    if choice is None:
        return "in_progress"
    return "incomplete" if choice.finish_reason == "length" else "completed"


def _reasoning_item(head: Head, text: str) -> dict[str, Any]:
    item = {
        "id": f"rs_{head.suffix}",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text}],
        "status": "completed",
    }
    if _INCLUDE_ENCRYPTED in (head.request.body.get("include") or ()):
        item["encrypted_content"] = head.reasoning_id
    return item


def _message_item(head: Head, content: str, status: str, tokens: Sequence[tuple[str, float]] = ()) -> dict[str, Any]:
    part = {
        "type": "output_text",
        "text": content,
        "annotations": [],
        "logprobs": [_logprob(text, value) for text, value in tokens],
    }
    return {"id": f"msg_{head.suffix}", "type": "message", "status": status, "role": "assistant", "content": [part]}


def _logprob(text: str, value: float) -> dict[str, Any]:
    return {
        "token": text,
        "logprob": shown_logprob(value),
        "bytes": list(text.encode()),
        "top_logprobs": [],
    }


def _usage(head: Head, choice: Choice) -> dict[str, Any]:
    return {
        "input_tokens": head.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": choice.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": head.prompt_tokens + choice.sampled_tokens,
    }
