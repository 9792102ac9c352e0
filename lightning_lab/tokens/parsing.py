"""Sampled text to an assistant message: reasoning, content and Hermes-style tool calls.

Nothing is re-serialised: the arguments of a tool call are the very characters that were sampled, so that a harness
which echoes them renders to the same ids.
"""

from __future__ import annotations

import json
import re

from lightning_lab.records import Message

_CALL_OPEN = "<tool_call>"
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


def parse_reply(text: str, *, opened: bool = True) -> Message:
    """Text without its end-of-turn tokens → assistant message. Tool calls get no ids.

    ``opened``: whether the prompt may end inside a thought, so that only the thought's end is sampled.
    """
    reasoning, rest = _split_reasoning(text, opened)
    content, calls = _split_calls(rest)
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


def parse_beginning(text: str, *, opened: bool = True) -> Message:
    """What is sure of a reply that begins with ``text``: however it goes on, `parse_reply` of it begins like this.

    Tool calls are left out, and so is everything after the first.
    """
    head = text.lstrip()
    if _THINK_OPEN.startswith(head[: len(_THINK_OPEN)]) and not head.startswith(_THINK_OPEN):
        return Message(role="assistant")  # it may become a thought
    if not opened or head.startswith(_THINK_OPEN) or _THINK_CLOSE in text or _THINK_OPEN in text:
        reasoning, rest = _split_reasoning(text, opened)
        if head.startswith(_THINK_OPEN) and _THINK_CLOSE not in text:
            reasoning = _without_beginning_of(_THINK_CLOSE, head[len(_THINK_OPEN) :]).strip("\n")
        before, called, _ = rest.partition(_CALL_OPEN)
        content = before if called else _without_beginning_of(_CALL_OPEN, rest)
        return Message(role="assistant", content=content.removesuffix("\n"), reasoning=reasoning)
    return Message(role="assistant")  # it may be a thought


def _without_beginning_of(tag: str, text: str) -> str:
    """``text`` without an end that may become ``tag``."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length]
    return text


def _split_reasoning(text: str, opened: bool) -> tuple[str, str]:
    head = text.lstrip()
    if head.startswith(_THINK_OPEN):
        body = head[len(_THINK_OPEN) :]
        thought, closed, rest = body.partition(_THINK_CLOSE)
        return thought.strip("\n"), rest.lstrip("\n") if closed else ""
    thought, closed, rest = text.partition(_THINK_CLOSE)
    if opened and closed and _THINK_OPEN not in thought:
        return thought.strip("\n"), rest.lstrip("\n")
    return "", text


def _split_calls(text: str) -> tuple[str, tuple[dict[str, str], ...]]:
    calls: list[dict[str, str]] = []
    kept: list[str] = []
    end = 0
    for match in _CALL.finditer(text):
        found = _parse_calls(match.group(1))
        if not found:
            continue
        calls.extend(found)
        kept.append(text[end : match.start()])
        end = match.end()
    if not calls:
        return text, ()
    kept.append(text[end:])
    # Templates put one line break before each call: it is no content, and all other space before the first call is.
    before = kept[0].removesuffix("\n")
    return "\n".join(part for part in (before, *(piece.strip() for piece in kept[1:])) if part), tuple(calls)


def _parse_calls(body: str) -> list[dict[str, str]]:
    """``{"name": …, "arguments": …}``, or a list of them as SmolLM2 writes it → calls, none if it is malformed."""
    text = body.strip()
    listed = text.startswith("[")
    at = _skip(text, 1) if listed else 0
    calls: list[dict[str, str]] = []
    try:
        while True:
            members, at = _object_members(text, at)
            call = _as_call(members)
            if call is None:
                return []
            calls.append(call)
            at = _skip(text, at)
            if not listed or text[at] != ",":
                break
            at = _skip(text, at + 1)
        complete = text[at:] == "]" if listed else at == len(text)
    except (ValueError, IndexError):
        return []
    return calls if complete else []


def _as_call(members: dict[str, tuple[str, object]]) -> dict[str, str] | None:
    name = members.get("name", ("", None))[1]
    if not isinstance(name, str) or not name:
        return None
    raw, value = members.get("arguments") or members.get("parameters") or ("{}", {})
    if isinstance(value, str):
        return {"name": name, "arguments": value}
    return {"name": name, "arguments": raw} if isinstance(value, dict) else None


def _object_members(text: str, at: int) -> tuple[dict[str, tuple[str, object]], int]:
    """The members of the JSON object at ``at`` as (characters, value), and where it ends."""
    if text[at] != "{":
        raise ValueError("no object")
    members: dict[str, tuple[str, object]] = {}
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if not isinstance(key, str) or text[at] != ":":
            raise ValueError("no member")
        start = _skip(text, at + 1)
        value, at = _DECODER.raw_decode(text, start)
        members[key] = (text[start:at], value)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        elif text[at] != "}":
            raise ValueError("no separator")
    return members, at + 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
