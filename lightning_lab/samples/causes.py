"""The cause of a break, by the messages of both calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_lab.records import BreakCause, Call, Message

SUMMARY_CHARS = 16
"""A shorter reply inside a later message proves no summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about one break."""

    previous: Call
    call: Call
    earlier: Sequence[Call]
    """Calls that completed last before the call arrived."""
    in_reply: bool
    """The ids differ within the previous reply, not within its prompt."""
    missing_ids: bool
    """Ids of either call are missing, so nothing can be said about where they differ."""
    same_text: Callable[[], bool]
    """Whether, from the break on, the prompt decodes to the open sample's text; asked only where it matters."""


def cause_of(evidence: Evidence) -> BreakCause:
    """One cause. What stands first in a prompt (tools, system) is asked first when the prompt itself differs."""
    previous, call = evidence.previous, evidence.call
    if evidence.missing_ids:
        return BreakCause.UNKNOWN
    history = [*_turns(previous.messages), previous.reply]
    turns = _turns(call.messages)
    common = _common(history, turns)
    if previous.kind == "compaction" and _summarises(evidence):
        return BreakCause.COMPACTED
    if common == 0:
        return _unrelated(evidence, history, turns)
    if not evidence.in_reply and _canonical(previous.tools) != _canonical(call.tools):
        return BreakCause.TOOLS_CHANGED
    if not evidence.in_reply and _system(previous) != _system(call):
        return BreakCause.SYSTEM_CHANGED
    if common == len(history):
        return BreakCause.RETOKENIZED if evidence.same_text() else BreakCause.TEMPLATE
    if common == len(turns):
        return BreakCause.EDITED
    cause = _message_cause(history[common], turns[common])
    if cause is BreakCause.EDITED and (len(turns) < len(history) or _summarises(evidence)):
        return BreakCause.COMPACTED
    return cause


def message_key(message: Message) -> Hashable:
    """Equal for messages with equal words. Ids of tool calls are names, not words: clients may rename them."""
    images = tuple(image["url"] for image in message.images)
    return (message.role, message.content, message.reasoning, tuple(_tool_calls(message)), images)


def _unrelated(evidence: Evidence, history: Sequence[Message], turns: Sequence[Message]) -> BreakCause:
    """The first turn differs: another conversation, or the same one made shorter."""
    if not turns:
        return BreakCause.UNKNOWN
    if evidence.previous.thread != evidence.call.thread and evidence.previous.kind != "compaction":
        return BreakCause.NEW_THREAD
    said = {message_key(message) for message in history}
    window = any(message_key(turn) in said for turn in turns)
    if window or evidence.previous.kind == "compaction" or _summarises(evidence):
        return BreakCause.COMPACTED
    if _message_cause(history[0], turns[0]) is not BreakCause.EDITED:
        return _message_cause(history[0], turns[0])
    return BreakCause.NEW_THREAD


def _summarises(evidence: Evidence) -> bool:
    """Whether a system, user or tool message of the call holds the reply of an earlier call."""
    replies = [call.reply.content.strip() for call in evidence.earlier]
    texts = [message.content for message in evidence.call.messages if message.role != "assistant"]
    return any(reply in text for reply in replies if len(reply) >= SUMMARY_CHARS for text in texts)


def _message_cause(said: Message, shown: Message) -> BreakCause:
    if said.role != shown.role or said.content != shown.content:
        return BreakCause.EDITED
    if _parsed_tool_calls(said) != _parsed_tool_calls(shown):
        return BreakCause.EDITED
    if said.reasoning and not shown.reasoning:  # it stands before the tool calls
        return BreakCause.REASONING_DROPPED
    return BreakCause.TOOL_ARGS if _tool_calls(said) != _tool_calls(shown) else BreakCause.EDITED


def _common(history: Sequence[Message], turns: Sequence[Message]) -> int:
    common = 0
    for said, shown in zip(history, turns, strict=False):
        if message_key(said) != message_key(shown):
            break
        common += 1
    return common


def _turns(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role != "system"]


def _system(call: Call) -> list[str]:
    return [message.content for message in call.messages if message.role == "system"]


def _tool_calls(message: Message) -> list[tuple[str, str]]:
    return [(call.get("name", ""), call.get("arguments", "")) for call in message.tool_calls]


def _parsed_tool_calls(message: Message) -> list[tuple[str, Any]]:
    return [(name, _parsed(arguments)) for name, arguments in _tool_calls(message)]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _canonical(tools: Sequence[Any]) -> str:
    return json.dumps([dict(tool) for tool in tools], sort_keys=True, default=str)
