"""Fields that say what a reply may be, for endpoints that can heed them: in the shape of Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_lab.gateway.protocols.wire import Request

_SAME = ("parallel_tool_calls", "response_format", "reasoning_effort")
"""Fields that are written alike wherever they exist."""
_WORDS = {"auto": "auto", "none": "none", "any": "required", "required": "required"}


def steering(request: Request) -> dict[str, Any]:
    """What of a request's uninterpreted fields goes on. They stay recorded in ``Request.extra`` as they came."""
    found = {name: request.extra[name] for name in _SAME if request.extra.get(name) is not None}
    if not request.tools:
        found.pop("parallel_tool_calls", None)  # refused without tools, as a choice of tools is
        return found
    choice = _tool_choice(request.extra.get("tool_choice"))
    return found | ({"tool_choice": choice} if choice is not None else {})


def _tool_choice(said: Any) -> Any:
    """A choice of tools as Chat, Responses and Messages write it; None for what none of them knows."""
    if isinstance(said, str):
        return _WORDS.get(said)
    if not isinstance(said, Mapping):
        return None
    function = said.get("function")
    name = function.get("name") if isinstance(function, Mapping) else said.get("name")
    if isinstance(name, str):
        return {"type": "function", "function": {"name": name}}
    kind = said.get("type")
    return _WORDS.get(kind) if isinstance(kind, str) else None
