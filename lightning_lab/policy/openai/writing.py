"""Conversations in the shape of Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_lab.records import Message


def written(messages: Sequence[Message], reasoning_field: str) -> list[dict[str, Any]]:
    """A conversation. ``reasoning_field``: where the server wants to read reasoning; empty where it knows none.

    Only users show images there: what tools showed follows their results.
    """
    found: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "tool":
            shown += [_image(image) for image in message.images]
        elif shown:
            found.append({"role": "user", "content": shown})
            shown = []
        found.append(_message(message, reasoning_field))
    return [*found, {"role": "user", "content": shown}] if shown else found


def _message(message: Message, reasoning_field: str) -> dict[str, Any]:
    content = _parts(message) if message.images and message.role != "tool" else message.content
    said: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        said["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.reasoning and reasoning_field:
        said[reasoning_field] = message.reasoning
    if message.role == "tool":
        said["tool_call_id"] = message.tool_call_id
    elif message.name:
        said["name"] = message.name
    return said


def _parts(message: Message) -> list[dict[str, Any]]:
    """Text and images in their order, as they were sent."""
    parts: list[dict[str, Any]] = []
    at = 0
    for image in message.images:
        parts += [*_text(message.content[at : image["after"]], follows=at > 0), _image(image)]
        at = image["after"]
    return parts + _text(message.content[at:], follows=at > 0)


def _text(text: str, *, follows: bool) -> list[dict[str, Any]]:
    """A part of text; texts that follow others were joined to them by a line break."""
    text = text.removeprefix("\n") if follows else text
    return [{"type": "text", "text": text}] if text else []


def _image(image: Mapping[str, Any]) -> dict[str, Any]:
    detail = {"detail": image["detail"]} if image.get("detail") else {}
    return {"type": "image_url", "image_url": {"url": image["url"], **detail}}


def _call(call: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": call["name"], "arguments": call["arguments"]},
    }
