"""Values as JSON that every front end can read: agents and data sets say anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

_EXACT = 2**53
"""Beyond this, a browser's numbers lose digits."""


def well_formed(text: str) -> str:
    """Lone surrogates, which UTF-8 cannot hold, become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def json_value(value: Any) -> Any:
    """The value made of dicts, lists, well-formed text and finite numbers; what is none of these as its text."""
    if isinstance(value, str):
        return well_formed(str(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= _EXACT else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {well_formed(str(key)): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in value]
    return well_formed(str(value))


def json_bytes(value: Any) -> bytes:
    """JSON of a value that `json_value` made, or of any text."""
    return orjson.dumps(well_formed(value) if isinstance(value, str) else value)


def finite(value: float | None) -> float | None:
    """JSON has no NaN: absent and non-finite numbers are null."""
    return float(value) if value is not None and math.isfinite(value) else None
