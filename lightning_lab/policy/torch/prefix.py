"""Keys and values of what was read before, for prompts that begin alike.

Agents send the whole conversation with every call, and all rollouts share instructions and tools: most of a prompt
was read already. Entries hold whole rows; a prompt reuses the longest common prefix with any of them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from lightning_lab.policy.torch.kv import Span
from lightning_lab.records import Ids

MIN_PREFIX = 16
"""Shorter matches cost more to copy than to read."""


def common_prefix(left: Ids, right: Ids) -> int:
    """Length of the longest common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


@dataclass(frozen=True, slots=True)
class Match:
    """``span[:length]`` holds a prompt's first ``length`` tokens."""

    length: int
    span: Span


NO_MATCH = Match(0, [])


class PrefixCache:
    """Least recently used rows, bounded in number and bytes. One thread only."""

    def __init__(self, *, max_entries: int = 96, max_bytes: int = 256 << 20) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[bytes, tuple[Ids, Span, int]] = OrderedDict()
        self._bytes = 0

    def find(self, prompt: Ids) -> Match:
        """The longest known prefix that leaves at least one token to read."""
        best, best_key = 0, b""
        for key, (ids, _, _) in self._entries.items():
            length = common_prefix(ids, prompt)
            if length > best:
                best, best_key = length, key
        if best < MIN_PREFIX:
            return NO_MATCH
        self._entries.move_to_end(best_key)
        return Match(min(best, len(prompt) - 1), self._entries[best_key][1])

    def add(self, ids: Ids, span: Span) -> None:
        """Remember a row; the entry that it continues is dropped."""
        if len(ids) < MIN_PREFIX:
            return
        size = sum(keys.nbytes + values.nbytes for keys, values in span)
        if size > self._max_bytes:
            return
        shorter = [key for key, (known, _, _) in self._entries.items() if _starts_with(ids, known)]
        for key in shorter:
            self._drop(key)
        self._entries[ids.tobytes()] = (ids, span, size)
        self._bytes += size
        while self._bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def _drop(self, key: bytes) -> None:
        self._bytes -= self._entries.pop(key)[2]


def _starts_with(ids: Ids, start: Ids) -> bool:
    return len(ids) >= len(start) and bool(np.array_equal(ids[: len(start)], start))
