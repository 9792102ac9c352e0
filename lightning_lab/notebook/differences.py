"""What a harness did to the conversation between two calls of a thread, and what the gateway did to a request.

A difference names the messages of the earlier call that are gone, and those that came back with other words, word by
word: ``[["=", "same "], ["-", "before"], ["+", "after"]]``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from lightning_lab.records import Call, Message, Sampling

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_WORDS = 1_500
"""Longer texts are compared up to their first and from their last difference only."""
_AROUND = 80
"""Characters of what is the same that are kept on both sides of a change."""
_ALIGNED = 200
"""So many messages are aligned with each other; of more, only the count is told."""
_SAME_AS = {"max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens", "stop_sequences": "stop"}
"""The protocols' own names."""


def gateway_changes(call: Call, ordinals: Mapping[str, int]) -> dict[str, Any]:
    """Sampling that the run decided otherwise than the harness asked, and what was put back into the prompt."""
    used = {field.name: getattr(call.used, field.name) for field in fields(Sampling)}
    changed = []
    for name, asked in call.asked.items():
        value = used.get(_SAME_AS.get(name, name))
        value = list(value) if isinstance(value, tuple) else value
        if value != asked and not (isinstance(asked, str) and value == [asked]):
            changed.append([name, asked, value])
    return {
        "sampling": changed,
        "extra": sorted(map(str, call.request_extra)),
        "kept": call.kept_replies,
        "left": [ordinals[id] for id in call.left_replies if id in ordinals],
    }


def difference(before: Call | None, call: Call, first_new: int) -> dict[str, Any] | None:
    """Between two calls of a thread; None where the later one only goes on.

    ``first_new``: messages of ``call`` before this index are the earlier call's, or its reply.
    """
    if before is None:
        return None
    old, new = [*before.messages, before.reply][first_new:], list(call.messages[first_new:])
    gone, changed = _compare(old, new)
    if first_new == len(before.messages) and not new:
        gone = 0  # the same request again: its reply is not missed
    changed += _reasoning(before, call, first_new)
    tools, offered = _tools(before), _tools(call)
    found = {
        "previous": before.ordinal,
        "gone": gone,
        "changed": changed,
        "tools_gone": [name for name in tools if name not in offered],
        "tools_new": [name for name in offered if name not in tools],
    }
    return found if any(value for name, value in found.items() if name != "previous") else None


def words_apart(before: str, after: str) -> list[list[str]]:
    """Two texts word by word; long stretches that are the same are shortened."""
    old, new = _WORD.findall(before), _WORD.findall(after)
    start = _common(old, new)
    end = min(_common(old[::-1], new[::-1]), len(old) - start, len(new) - start)
    middle = old[start : len(old) - end], new[start : len(new) - end]
    parts = [["=", "".join(old[:start])]]
    if max(map(len, middle)) > _WORDS:
        parts += [["-", "".join(middle[0])], ["+", "".join(middle[1])]]
    else:
        for kind, a, b, c, d in SequenceMatcher(None, middle[0], middle[1], autojunk=False).get_opcodes():
            same, said, heard = kind == "equal", "".join(middle[0][a:b]), "".join(middle[1][c:d])
            parts += [["=", said]] if same else [["-", said], ["+", heard]]
    parts.append(["=", "".join(old[len(old) - end :])])
    return _shortened([part for part in parts if part[1]])


def _compare(old: Sequence[Message], new: Sequence[Message]) -> tuple[int, list[dict[str, Any]]]:
    """How many of ``old`` are gone, and those that came back with other words."""
    if max(len(old), len(new)) > _ALIGNED:
        return len(old), []
    gone, changed = 0, []
    keys = [[(message.role, _text(message)) for message in side] for side in (old, new)]
    for kind, a, b, c, d in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if kind in ("equal", "insert"):
            continue
        for one, other in zip_longest(old[a:b], new[c:d]):
            if one is None:
                break
            if other is None or other.role != one.role:
                gone += 1
            else:
                changed.append({"role": one.role, "parts": words_apart(_text(one), _text(other))})
    return gone, changed


def _reasoning(before: Call, call: Call, first_new: int) -> list[dict[str, Any]]:
    """The reply came back without its reasoning."""
    if first_new != len(before.messages) + 1 or not before.reply.reasoning:
        return []
    echo = call.messages[first_new - 1].reasoning
    same = echo == before.reply.reasoning
    return [] if same else [{"role": "reasoning", "parts": words_apart(before.reply.reasoning, echo)}]


def _text(message: Message) -> str:
    calls = [f"{call.get('name', '')}({call.get('arguments', '')})" for call in message.tool_calls]
    return "\n".join(part for part in (message.content, *calls) if part)


def _tools(call: Call) -> list[str]:
    return [tool_name(tool) for tool in call.tools]


def tool_name(tool: Mapping[str, Any]) -> str:
    """The name that the model calls it by."""
    function = tool.get("function")
    source = function if isinstance(function, Mapping) else tool
    return str(source.get("name") or tool.get("type") or "")


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    length = min(len(a), len(b))
    return next((i for i in range(length) if a[i] != b[i]), length)


def _shortened(parts: list[list[str]]) -> list[list[str]]:
    last = len(parts) - 1
    for place, part in enumerate(parts):
        kind, text = part
        if kind == "=" and len(text) > 3 * _AROUND:
            head = text[:_AROUND] if place > 0 else ""
            tail = text[-_AROUND:] if place < last else ""
            part[1] = f"{head} … {tail}"
    return parts
