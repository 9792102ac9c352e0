"""What one token says, for views that show a text token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lightning_lab.notebook.plain import json_bytes
from lightning_lab.records import Ids
from lightning_lab.samples import Decode


class TokenText:
    """Text of single tokens, each asked for once."""

    def __init__(self, read: Callable[[int], str | None]) -> None:
        """``read``: None where nobody can say now."""
        self._read = read
        self._known: dict[int, str] = {}

    def text(self, id: int) -> str:
        """Empty where nobody knows."""
        text = self._known.get(id)
        if text is None:
            text = self._read(id)
            if text is None:
                return ""
            self._known[id] = text
        return text

    def encoded(self, ids: Sequence[int]) -> list[bytes]:
        """The texts as JSON, in order."""
        encoded: dict[int, bytes] = {}
        for id in ids:
            if id not in encoded:
                encoded[id] = json_bytes(self.text(id))
        return [encoded[id] for id in ids]

    def joined(self, ids: Ids) -> str:
        return "".join(self.text(int(id)) for id in ids)


def decoded_by(decoder: Callable[[], Decode | None]) -> TokenText:
    """By a policy's own decoder, while there is one. Ids that it does not know (redacted ones are −1) have no text."""

    def read(id: int) -> str | None:
        decode = decoder()
        if decode is None:
            return None
        if id < 0:
            return ""
        try:
            once = decode(np.array([id], np.int32))
            # Some decoders drop the space before a text's first word: the second of two equal tokens keeps its own.
            twice = decode(np.array([id, id], np.int32))
        except Exception:
            return ""
        return twice[len(once) :] if twice.startswith(once) else once

    return TokenText(read)


def looked_up(vocabulary: Mapping[int, bytes]) -> TokenText:
    """By the vocabulary that an exported run carries."""
    return TokenText(lambda id: vocabulary.get(id, b"").decode(errors="replace"))
