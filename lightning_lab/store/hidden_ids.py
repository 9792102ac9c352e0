"""Secrets in token ids: which ids of a call say one, so that they can be taken out.

A secret begins and ends inside tokens; every token that says a character of it is hidden. Where a text is known to
hold a secret that cannot be found among the ids (the template wrote it otherwise, or nobody can decode), all ids are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from itertools import accumulate

import numpy as np

from lightning_lab.records import Ids, Mask
from lightning_lab.store.redaction import Redaction
from lightning_lab.store.spelling import SPAN, UNFINISHED, block_starts

Decode = Callable[[Ids], str]

HIDDEN = -1
"""Stands for an id that was taken out."""


def hidden(ids: Ids, secrets: Collection[str], redaction: Redaction, decode: Decode | None) -> Mask:
    """Which of ``ids`` say a secret, shape [n]: what the rules find in their text, and ``secrets`` wherever they stand.

    ``decode``: ids → text, special tokens shown; without one, everything is hidden where there is a secret.
    """
    if decode is None:
        return np.full(len(ids), bool(secrets))
    spelled = _Spelled(ids, decode)
    spans = [(found.start, found.stop) for found in redaction.find(spelled.text)]
    for secret in secrets:
        places = _places(spelled.text, secret)
        if not places:
            return np.ones(len(ids), np.bool_)
        spans += places
    mask = np.zeros(len(ids), np.bool_)
    for start, stop in spans:
        spelled.mark(mask, start, stop)
    return mask


def without(ids: Ids, mask: Mask) -> Ids:
    """``ids`` with `HIDDEN` where ``mask`` is True; the same array where nothing is."""
    return np.where(mask, np.int32(HIDDEN), ids) if mask.any() else ids


class _Spelled:
    """Ids and their text, in blocks: only blocks with a secret are looked at token by token."""

    def __init__(self, ids: Ids, decode: Decode) -> None:
        known = np.where(ids < 0, 0, ids)  # taken out before: they say nothing, and a tokenizer knows no id −1
        self._ids, self._decode = known, decode
        self._starts = block_starts(known, decode)
        texts = [decode(known[a:b]) for a, b in zip(self._starts, self._starts[1:], strict=False)]
        self._offsets = [0, *accumulate(len(text) for text in texts)]
        self._ends: dict[int, list[tuple[int, int]]] = {}
        self.text = "".join(texts)

    def mark(self, mask: Mask, start: int, stop: int) -> None:
        """Set ``mask`` for every token that says a character of ``text[start:stop]``."""
        block = bisect_right(self._offsets, start) - 1
        while block < len(self._starts) - 1 and self._offsets[block] < stop:
            for at, (first, last) in enumerate(self._tokens(block), self._starts[block]):
                if first < stop and last > start:
                    mask[at] = True
            block += 1

    def _tokens(self, block: int) -> list[tuple[int, int]]:
        """Where each token of a block stands in the text; wider where a character spans several tokens."""
        if block not in self._ends:
            first, last, offset = self._starts[block], self._starts[block + 1], self._offsets[block]
            places, before, slack = [], offset, 0
            for stop in range(first + 1, last + 1):
                text = self._decode(self._ids[first:stop])
                after, wobble = offset + len(text), SPAN if text.endswith(UNFINISHED) else 0
                places.append((min(before, after) - max(slack, wobble), max(before, after) + max(slack, wobble)))
                before, slack = after, wobble
            self._ends[block] = places
        return self._ends[block]


def _places(text: str, secret: str) -> list[tuple[int, int]]:
    places, at = [], text.find(secret)
    while at >= 0:
        places.append((at, at + len(secret)))
        at = text.find(secret, at + len(secret))
    return places
