"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was looked at, what it is like, and what to do about it."""

    name: str
    level: Literal["ok", "note", "problem"]
    """A note is something that only some uses need."""
    said: str
    action: str = ""
