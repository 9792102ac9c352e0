"""Untrusted text for HTML: escaped, bounded, and with every invisible character made visible."""

from __future__ import annotations

import html
import re

_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def shown(text: str, limit: int = 2_000) -> str:
    """Text as safe HTML text. What is over ``limit`` characters is left out and counted."""
    more = len(text) - limit
    kept = html.escape(_INVISIBLE.sub(_visible, text[:limit]))
    return kept if more <= 0 else f"{kept} … [{more:,} more characters]"


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else f"‹U+{code:04X}›"
