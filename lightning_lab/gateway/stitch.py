"""Token in, token out: the ids that were really sampled, in place of their re-rendering.

A template turns the whole conversation into text, and the tokenizer may cut a reply differently from how the model
said it. Where the rendered segment decodes to exactly the text that was sampled, the sampled ids go back in. Text is
never changed: where a harness edited the reply, or the template writes it otherwise, the rendered ids stay.

Two ways to find a reply, the sure one first: the conversation goes on where an earlier call's prompt ended; else the
reply stands somewhere in the text, behind the header that the template writes in front of every reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_lab.gateway.ledger import Entry, Reading
from lightning_lab.gateway.segments import Spelled
from lightning_lab.records import Ids

Decode = Callable[[Ids], str]

_SLACK = 4
"""Ids around the estimated cut that are tried: a character that spans ids makes prefix lengths wobble."""

_BOUNDARY = 64
"""Ids at the end of the parent's prompt that may be cut otherwise when text follows them."""


@dataclass(frozen=True, slots=True, eq=False)
class Stitched:
    """A prompt, and what became of the replies that it repeats."""

    ids: Ids
    """Shape [m]; decodes like the rendered ids."""
    kept: int = 0
    """Replies that stand in it as sampled, beyond those that an earlier call read so already."""
    left: tuple[str, ...] = ()
    """Calls whose replies read otherwise now: their rendering stays."""


def stitch(rendered: Ids, turns: Sequence[Entry], decode: Decode) -> Ids:
    """The ids alone of `stitched`."""
    return stitched(rendered, turns, decode).ids


def stitched(rendered: Ids, turns: Sequence[Entry], decode: Decode) -> Stitched:
    """``rendered`` with what its assistant ``turns`` read and said put back; shapes [n] → [m], both decode alike.

    >>> # a turn read [1, 2] and said [7, 8]; rendered again, the same text became [1, 2, 9], then [3] follows
    >>> # → [1, 2, 7, 8, 3]
    """
    for at in range(len(turns) - 1, -1, -1):
        reading, sampled = turns[at].reading, turns[at].sampled
        parts = _continued(rendered, reading, sampled, decode) if reading is not None else None
        if parts is not None and reading is not None:
            head, tail = parts
            said = len(head) > len(reading.prompt) or not len(sampled)
            rest = _put_back(tail, turns[at + 1 :], decode)
            left = rest.left if said else (turns[at].call_id, *rest.left)
            return Stitched(_joined(head, rest.ids, rendered), rest.kept + said, left)
    return _put_back(rendered, turns, decode)


def _continued(rendered: Ids, reading: Reading, sampled: Ids, decode: Decode) -> tuple[Ids, Ids] | None:
    """What an earlier call read and said, and the rendered ids after it; None when the conversation before differs.

    Where only the reply reads otherwise now, the first part is what the call read.
    """
    common = _common_prefix(rendered, reading.rendered)
    if len(reading.rendered) - common > _BOUNDARY:
        return None
    said = np.concatenate([reading.rendered[common:], sampled])
    tail = rendered[common:]
    if np.array_equal(tail[: len(said)], said):
        return np.concatenate([reading.prompt, sampled]), tail[len(said) :]
    cut = _cut(tail, decode(said), len(said), decode)
    if cut is not None:
        return np.concatenate([reading.prompt, sampled]), tail[cut:]
    return (reading.prompt, tail) if common == len(reading.rendered) else None


def _put_back(ids: Ids, turns: Sequence[Entry], decode: Decode) -> Stitched:
    """``ids`` with the replies of ``turns`` put back, wherever they stand one after another; shapes [n] → [m]."""
    if not turns or not len(ids):
        return Stitched(ids)
    spelled = Spelled(ids, decode)
    parts: list[Ids] = []
    left: list[str] = []
    done = 0
    for turn in turns:
        wanted = np.concatenate([turn.header, turn.sampled])
        place = spelled.find(decode(wanted), done)
        if place is not None:
            start, stop = place
            parts += [ids[done:start], wanted]
            done = stop
        else:
            left.append(turn.call_id)
    whole = np.concatenate([*parts, ids[done:]]) if parts else ids
    return Stitched(whole, len(turns) - len(left), tuple(left))


def _joined(head: Ids, tail: Ids, rendered: Ids) -> Ids:
    """Both parts; the rendered array itself where nothing changed, because equal arrays are kept once."""
    whole = np.concatenate([head, tail])
    return rendered if np.array_equal(whole, rendered) else whole


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
