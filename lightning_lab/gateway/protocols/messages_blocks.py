"""Anthropic Messages: content blocks → messages.

A user turn may hold tool results beside text: each result becomes a message of its own, in the order of the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from lightning_lab.gateway.errors import bad_request
from lightning_lab.gateway.protocols import fields
from lightning_lab.records import Message

_ROLES = ("user", "assistant", "system")
_MEDIA = ("image", "document", "container_upload")


def system_text(value: Any) -> str:
    """``system``: a string, text blocks, or nothing."""
    return fields.content_text(value, "system")


def read_turns(turns: list[Any]) -> tuple[list[Message], dict[int, str]]:
    """Messages, and the signature of their reasoning by message index. Raises `Fault` 400."""
    messages: list[Message] = []
    signatures: dict[int, str] = {}
    for at, value in enumerate(turns):
        param = f"messages[{at}]"
        turn = fields.mapping(value, param)
        role = fields.text(turn, "role", f"{param}.")
        blocks = _blocks(turn.get("content"), f"{param}.content")
        if role == "assistant":
            message, signature = _assistant(blocks, f"{param}.content")
            if signature:
                signatures[len(messages)] = signature
            messages.append(message)
        elif role in _ROLES:
            messages += _others(role, blocks, f"{param}.content")
        else:
            raise bad_request(f"{param}.role must be one of {', '.join(_ROLES)}.", param=f"{param}.role")
    return messages, signatures


def failed_results(turns: list[Any]) -> list[str]:
    """Ids of the tool calls whose results say that they are errors; `read_turns` has checked the shapes."""
    return [
        str(block.get("tool_use_id") or "")
        for turn in turns
        for block in (turn["content"] if isinstance(turn.get("content"), list) else ())
        if block.get("type") == "tool_result" and block.get("is_error") is True
    ]


def _blocks(value: Any, param: str) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    return [fields.mapping(block, f"{param}[{at}]") for at, block in enumerate(fields.array(value, param))]


def _assistant(blocks: list[Mapping[str, Any]], param: str) -> tuple[Message, str]:
    """One turn of the model, and the signature of its reasoning."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Mapping[str, str]] = []
    signature = ""
    for at, block in enumerate(blocks):
        where = f"{param}[{at}]."
        kind = fields.text(block, "type", where)
        if kind == "thinking":
            thoughts.append(fields.text(block, "thinking", where))
            signature = fields.text(block, "signature", where) or signature
        elif kind == "redacted_thinking":
            signature = fields.text(block, "data", where) or signature
        elif kind == "tool_use":
            calls.append(
                {
                    "id": fields.text(block, "id", where),
                    "name": fields.text(block, "name", where),
                    "arguments": fields.arguments_text(block.get("input"), f"{where}input"),
                }
            )
        else:
            texts.append(_text(block, f"{param}[{at}]"))
    message = Message(
        role="assistant", content="\n".join(texts), reasoning="\n".join(thoughts), tool_calls=tuple(calls)
    )
    return message, signature


def _others(role: str, blocks: list[Mapping[str, Any]], param: str) -> list[Message]:
    messages: list[Message] = []
    said = _Said()
    for at, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            said.add(block, f"{param}[{at}]")
            continue
        if not said.empty:
            messages.append(said.message(role))
            said = _Said()
        messages.append(_tool_result(block, f"{param}[{at}]"))
    if not said.empty or not messages:
        messages.append(said.message(role))
    return messages


def _tool_result(block: Mapping[str, Any], param: str) -> Message:
    said = _Said()
    for at, part in enumerate(_blocks(block.get("content"), f"{param}.content")):
        said.add(part, f"{param}.content[{at}]")
    return said.message("tool", fields.text(block, "tool_use_id", f"{param}."))


class _Said:
    """Text and images of one message, block by block."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._images: list[Mapping[str, Any]] = []

    @property
    def empty(self) -> bool:
        return not self._texts and not self._images

    def add(self, block: Mapping[str, Any], param: str) -> None:
        if fields.is_image(block):
            self._images.append(fields.image(block, param, after=len("\n".join(self._texts))))
        else:
            self._texts.append(_text(block, param))

    def message(self, role: str, tool_call_id: str = "") -> Message:
        content = "\n".join(self._texts)
        return Message(role=role, content=content, images=tuple(self._images), tool_call_id=tool_call_id)


def _text(block: Mapping[str, Any], param: str) -> str:
    """The text of a block; what is neither text nor media is shown as the JSON that it is."""
    kind = fields.text(block, "type", f"{param}.")
    if kind == "text":
        return fields.text(block, "text", f"{param}.")
    if not kind:
        raise bad_request(f"{param}.type is missing: a block of content says what it is.", param=f"{param}.type")
    if kind in _MEDIA:
        raise bad_request(
            f"Content of type {kind!r} cannot be given to a text model.", param=param, code="unsupported_content"
        )
    return orjson.dumps({key: value for key, value in block.items() if key != "cache_control"}).decode()
