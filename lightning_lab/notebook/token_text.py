"""What one token says, for views that show a text token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lightning_lab.notebook.plain import json_bytes
from lightning_lab.records import Ids
from lightning_lab.samples import Decode
from lightning_lab.store.spelling import spell


class TokenText:
    """Text of single tokens, each asked for once."""

    def __init__(self, read: Callable[[int], str | None], decoder: Callable[[], Decode | None] = lambda: None) -> None:
        """``read``: one token, None where nobody can say now; ``decoder``: whole texts, where somebody can."""
        self._read = read
        self._decoder = decoder
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

    def decode(self, ids: Ids) -> str:
        """A whole text; as far as its tokens are known, where nobody decodes now."""
        decode = self._decoder()
        return decode(ids) if decode else "".join(self.text(int(id)) for id in ids)


def decoded_by(decoder: Callable[[], Decode | None]) -> TokenText:
    """By a policy's own decoder, while there is one; redacted ids (−1) have no text."""

    def read(id: int) -> str | None:
        decode = decoder()
        return None if decode is None else spell(decode, id)

    return TokenText(read, decoder)


def looked_up(vocabulary: Mapping[int, bytes]) -> TokenText:
    """By the vocabulary that an exported run carries."""

    def joined(ids: Ids) -> str:
        return b"".join(vocabulary.get(id, b"") for id in ids.tolist()).decode(errors="replace")

    return TokenText(lambda id: vocabulary.get(id, b"").decode(errors="replace"), lambda: joined)
