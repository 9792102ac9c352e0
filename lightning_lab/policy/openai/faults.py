"""What an endpoint's refusals mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from lightning_lab.policy.base import ContextOverflowError, PolicyError, RefusedError

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may succeed."""
_REFUSALS = frozenset({400, 413, 422})
_OVERFLOW = re.compile(
    r"context[ _-]?(?:length|window|size)|maximum context|max_model_len|prompt is too long|too many (?:input )?tokens"
    r"|(?:input|prompt)\b[^.\n]{0,60}\b(?:longer|exceeds?|too long)"
)
_NO_CREDIT = "insufficient_quota"
_MOST_WORDS = 400
"""Characters of an endpoint's message that are passed on."""


def is_overflow(status: int, said: str) -> bool:
    """Whether the conversation, or it and the reply asked for, does not fit into the model's context."""
    return status in _REFUSALS and _OVERFLOW.search(said.lower()) is not None


def may_pass(status: int, said: str) -> bool:
    """Whether it is worth asking again later."""
    return status in PASSING and _NO_CREDIT not in said


def fault(status: int, said: str, *, where: str) -> PolicyError:
    """The error that says what the endpoint's answer means and what to do."""
    answered = f"{where} answered {status}: {said}"
    if is_overflow(status, said):
        return ContextOverflowError(f"{answered} Shorten the conversation.")
    if status in _REFUSALS:
        return RefusedError(answered)
    if status in (401, 403):
        return PolicyError(f"{answered} Give the endpoint's own key: Policy.openai(…, api_key=…).")
    if status == 404:
        return PolicyError(f"{answered} Check base_url (it usually ends in /v1) and the model's name.")
    if 300 <= status < 400:
        return PolicyError(f"{answered} Redirects are not followed, as they could take the key elsewhere.")
    return PolicyError(answered)


def message_of(body: bytes, key: str) -> str:
    """The words of an error body, whatever its shape; never with the key in it."""
    text = body.decode("utf-8", "replace").strip()
    said = " ".join((_words(text) or text or "(nothing)").split())
    said = said if len(said) <= _MOST_WORDS else said[:_MOST_WORDS] + " …"
    said = said.replace(key, "(key)") if key else said
    return said if said.endswith((".", "!", "…")) else said + "."


def _words(text: str) -> str:
    """``{"error": {"message", "code"}}``, ``{"error"}``, ``{"message"}`` or ``{"detail"}``; empty for others."""
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ""
    return error_words(body.get("error") or body) if isinstance(body, dict) else ""


def error_words(error: Any) -> str:
    """The message of an error, with its code or type where it has one."""
    if not isinstance(error, Mapping):
        return str(error)
    message = next((error[name] for name in ("message", "detail", "msg") if error.get(name)), None)
    name = next((error[name] for name in ("code", "type") if isinstance(error.get(name), str)), "")
    return " ".join(str(part) for part in (message, f"({name})" if name else "") if part)
