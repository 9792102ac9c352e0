"""Where a text stands in a sequence of ids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from lightning_lab.records import Ids
from lightning_lab.store.spelling import BLOCK, SPAN, block_starts

_TRIES = 8
"""Occurrences of a text that are looked at: most are found at the first."""


class Spelled:
    """Ids, shape [n], and the text that they decode to, in blocks: positions are found without decoding all again."""

    def __init__(self, ids: Ids, decode: Callable[[Ids], str]) -> None:
        self._ids = ids
        self._decode = decode
        self._starts = block_starts(ids, decode)
        texts = [decode(ids[a:b]) for a, b in zip(self._starts, self._starts[1:], strict=False)]
        self._offsets = [0, *accumulate(len(text) for text in texts)]
        self._text = "".join(texts)

    def find(self, text: str, after: int) -> tuple[int, int] | None:
        """``(start, stop)`` of the first ids at or after ``after`` that decode to exactly ``text``, or None."""
        at = self._text.find(text, max(0, self._offset(after) - SPAN))
        for _ in range(_TRIES):
            if at < 0 or not text:
                return None
            for start in self._candidates(at):
                stop = self._stop(start, text) if start >= after else None
                if stop is not None:
                    return start, stop
            at = self._text.find(text, at + 1)
        return None

    def _offset(self, index: int) -> int:
        """The character at which the id stands, within a few."""
        block = min(bisect_right(self._starts, index) - 1, len(self._starts) - 2)
        return self._offsets[block] + len(self._decode(self._ids[self._starts[block] : index]))

    def _candidates(self, offset: int) -> list[int]:
        """Ids that may begin at a character: prefix lengths wobble where a character spans ids."""
        block = min(bisect_right(self._offsets, offset) - 1, len(self._starts) - 2)
        first, last = self._starts[block], self._starts[block + 1]
        near = first + self._length(first, last, offset - self._offsets[block])
        return sorted(range(max(0, near - 2), min(len(self._ids), near + 3)), key=lambda start: abs(start - near))

    def _stop(self, start: int, text: str) -> int | None:
        """Where the ids from ``start`` on have decoded to exactly ``text``."""
        offset = self._offset(start) + len(text)
        block = min(bisect_right(self._offsets, offset) - 1, len(self._starts) - 2)
        low, high = max(start, self._starts[block] - BLOCK), min(len(self._ids), self._starts[block + 1] + BLOCK)
        near = low
        while near < high:  # the first stop that decodes to at least as much text
            middle = (near + high) // 2
            if len(self._decode(self._ids[start:middle])) < len(text):
                near = middle + 1
            else:
                high = middle
        for stop in range(max(start + 1, near - 2), min(len(self._ids), near + 2) + 1):
            if self._decode(self._ids[start:stop]) == text:
                return stop
        return None

    def _length(self, first: int, last: int, characters: int) -> int:
        """How many ids from ``first`` on decode to ``characters`` characters, at least."""
        low, high = 0, last - first
        while low < high:
            middle = (low + high) // 2
            if len(self._decode(self._ids[first : first + middle])) < characters:
                low = middle + 1
            else:
                high = middle
        return low
