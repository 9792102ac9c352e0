"""Token in, token out: the ids that were really sampled, in place of their re-rendering.

A template turns the whole conversation into text, and the tokenizer may cut a reply differently from how the model
said it. Where the rendered segment decodes to exactly the text that was sampled, the sampled ids go back in. Text is
never changed: where a harness edited the reply, or the template writes it otherwise, the rendered ids stay.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lightning_lab.gateway.ledger import Entry
from lightning_lab.records import Ids

Decode = Callable[[Ids], str]

_SLACK = 4
"""Ids around the estimated cut that are tried: a character that spans ids makes prefix lengths wobble."""

_BOUNDARY = 64
"""Ids at the end of the parent's prompt that may be cut otherwise when text follows them."""


def stitch(rendered: Ids, parent: Entry, decode: Decode) -> Ids:
    """``rendered`` with what ``parent`` read and said put back; shapes [n] → [m], and both decode alike.

    >>> # parent read [1, 2] and said [7, 8]; rendered again, the same text became [1, 2, 9], then [3] follows
    >>> # → [1, 2, 7, 8, 3]
    """
    common = _common_prefix(rendered, parent.rendered)
    if len(parent.rendered) - common > _BOUNDARY:
        return rendered  # the conversation before the reply was changed
    said = np.concatenate([parent.rendered[common:], parent.sampled])
    tail = rendered[common:]
    if np.array_equal(tail[: len(said)], said):
        if parent.prompt is parent.rendered:
            return rendered
        return np.concatenate([parent.prompt, parent.sampled, tail[len(said) :]])
    cut = _cut(tail, decode(said), len(said), decode)
    if cut is not None:
        return np.concatenate([parent.prompt, parent.sampled, tail[cut:]])
    if common == len(parent.rendered):  # the reply reads otherwise now, but all before it stays as it was read
        return np.concatenate([parent.prompt, tail])
    return rendered


def _cut(tail: Ids, text: str, guess: int, decode: Decode) -> int | None:
    """How many ids of ``tail`` decode to exactly ``text``, or None."""
    low, high = 0, len(tail)
    while low < high:  # the first length that decodes to at least as much text
        middle = guess if low < guess < high and high == len(tail) else (low + high) // 2
        if len(decode(tail[:middle])) < len(text):
            low = middle + 1
        else:
            high = middle
    for cut in range(max(0, low - _SLACK), min(len(tail), low + _SLACK) + 1):
        if decode(tail[:cut]) == text:
            return cut
    return None


def _common_prefix(a: Ids, b: Ids) -> int:
    """How many leading ids are equal."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
