"""OpenAI Responses: input items → messages.

What one reply said comes back as several items (reasoning, message, function calls, in this order); they become one
assistant message again, so that the conversation renders as it was sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lightning_lab.gateway.errors import bad_request
from lightning_lab.gateway.protocols import fields
from lightning_lab.gateway.protocols.chat import message_content
from lightning_lab.gateway.protocols.responses_tools import shown
from lightning_lab.records import Message

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(slots=True)
class _Conversation:
    """Messages so far, and the assistant turn that is still open."""

    messages: list[Message] = field(default_factory=list)
    turn: Message | None = None
    signatures: dict[int, str] = field(default_factory=dict)
    """Of reasoning items, by the index of their message."""

    def say(self, message: Message) -> None:
        """Something that is not the assistant's; it ends the open turn."""
        self.close()
        self.messages.append(message)

    def close(self) -> None:
        if self.turn is not None:
            self.messages.append(self.turn)
            self.turn = None

    def reason(self, text: str, signature: str) -> None:
        self.close()
        self.turn = Message(role="assistant", reasoning=text)
        if signature:
            self.signatures[len(self.messages)] = signature

    def speak(self, text: str) -> None:
        if self.turn is None or self.turn.content or self.turn.tool_calls:
            self.close()
            self.turn = Message(role="assistant")
        self.turn = replace(self.turn, content=text)

    def call(self, tool_call: Mapping[str, str]) -> None:
        turn = self.turn or Message(role="assistant")
        self.turn = replace(turn, tool_calls=(*turn.tool_calls, tool_call))


def read_items(items: list[Any], flattened: list[dict[str, str]]) -> tuple[list[Message], dict[int, str], list[Any]]:
    """Messages, the signatures of their reasoning by message index, and items that no message can say.

    ``flattened``: what `responses_tools.read_tools` recorded. Raises `Fault` 400.
    """
    conversation = _Conversation()
    left_out: list[Any] = []
    for at, value in enumerate(items):
        item, param = fields.mapping(value, f"input[{at}]"), f"input[{at}]"
        if not _read_item(conversation, item, param, flattened):
            left_out.append(item)
    conversation.close()
    return conversation.messages, conversation.signatures, left_out


def _read_item(
    conversation: _Conversation, item: Mapping[str, Any], param: str, flattened: list[dict[str, str]]
) -> bool:
    where = f"{param}."
    kind = fields.text(item, "type", where) or "message"
    if kind == "message":
        _read_message(conversation, item, where)
    elif kind == "reasoning":
        conversation.reason(_reasoning(item, where), fields.text(item, "encrypted_content", where))
    elif kind in ("function_call", "custom_tool_call"):
        said = item.get("arguments" if kind == "function_call" else "input")
        conversation.call(
            {
                "id": fields.text(item, "call_id", where),
                "name": shown(item, flattened, where),
                "arguments": fields.arguments_text(said, f"{where}arguments"),
            }
        )
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output, images = fields.content(item.get("output"), f"{where}output")
        call_id = fields.text(item, "call_id", where)
        conversation.say(Message(role="tool", content=output, images=images, tool_call_id=call_id))
    elif kind == "item_reference":
        raise bad_request(
            "item_reference is not supported: this gateway keeps no items. Send the item itself.",
            param=param,
            code="unsupported_parameter",
        )
    else:
        return False
    return True


def _read_message(conversation: _Conversation, item: Mapping[str, Any], where: str) -> None:
    role = _ROLES.get(fields.text(item, "role", where))
    if role is None:
        raise bad_request(f"{where}role must be one of {', '.join(_ROLES)}.", param=f"{where}role")
    content, images = message_content(role, item.get("content"), f"{where}content")
    if role == "assistant":
        conversation.speak(content)
    else:
        conversation.say(Message(role=role, content=content, images=images))


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    """Raw reasoning where the item has it, else its summary."""
    for key in ("content", "summary"):
        parts = fields.items(item, key, where)
        found = [
            fields.text(fields.mapping(part, f"{where}{key}[{at}]"), "text", f"{where}{key}[{at}].")
            for at, part in enumerate(parts)
        ]
        if any(found):
            return "\n".join(found)
    return ""
