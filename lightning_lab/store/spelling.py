"""What a single token says, by a decoder that is made for whole texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lightning_lab.records import Ids


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
