"""How model families mark the turns of a conversation: what the shipped tool template needs to know of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_ROLES = ("system", "user", "assistant")


def turn_marks(has_token: Callable[[str], bool], begin: str) -> Mapping[str, Any] | None:
    """Marks of the family whose tokens the tokenizer has, or None: ChatML, Llama 3, Gemma, DeepSeek.

    ``begin`` is the token that begins a conversation, where there is one.
    """
    if has_token("<|im_start|>") and has_token("<|im_end|>"):
        return _marks("", {role: f"<|im_start|>{role}\n" for role in _ROLES}, "<|im_end|>\n")
    if has_token("<|start_header_id|>") and has_token("<|eot_id|>"):
        opened = {role: f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in _ROLES}
        return _marks(begin, opened, "<|eot_id|>")
    if has_token("<start_of_turn>") and has_token("<end_of_turn>"):  # Gemma has no system turn
        names = {"system": "user", "user": "user", "assistant": "model"}
        return _marks(begin, {role: f"<start_of_turn>{names[role]}\n" for role in _ROLES}, "<end_of_turn>\n")
    if has_token("<｜User｜>") and has_token("<｜Assistant｜>"):
        marks = _marks(begin, {"system": "", "user": "<｜User｜>", "assistant": "<｜Assistant｜>"}, "")
        return {**marks, "close": {**marks["close"], "assistant": "<｜end▁of▁sentence｜>"}}
    return None


def _marks(begin: str, opened: Mapping[str, str], close: str) -> dict[str, Any]:
    return {"begin": begin, "open": opened, "close": dict.fromkeys(_ROLES, close)}
