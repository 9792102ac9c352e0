"""What parts of a sequence of ids say, by a decoder that is made for whole texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lightning_lab.records import Ids

BLOCK = 256
"""Ids that are decoded together."""
SPAN = 8
"""The most ids that one character spans."""
UNFINISHED = "\ufffd"
"""What a decoder writes for a part of a character."""


def block_starts(ids: Ids, decode: Callable[[Ids], str]) -> list[int]:
    """Borders of blocks of about `BLOCK` ids, first and last included, that cut no character."""
    starts, end = [0], len(ids)
    while starts[-1] < end:
        stop = min(starts[-1] + BLOCK, end)
        for longer in range(stop, min(stop + SPAN, end)):
            if not decode(ids[starts[-1] : longer]).endswith(UNFINISHED):
                stop = longer
                break
        starts.append(stop)
    return starts


def spell(decode: Callable[[Ids], str], id_: int) -> str:
    """The token's text as it stands in the middle of one; empty for ids that the decoder does not know.

    Some decoders drop the space before a text's first word: the second of two equal tokens keeps its own. A token that
    is part of a character only reads ``�``.
    """
    if id_ < 0:
        return ""
    try:
        once = decode(np.array([id_], np.int32))
        twice = decode(np.array([id_, id_], np.int32))
    except Exception:
        return ""
    return twice[len(once) :] if twice.startswith(once) else once
