"""What is sure of a reply while it is still being sampled."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from lightning_lab.records import Ids, Message
from lightning_lab.tokens.parsing import parse_beginning

_CONTEXT = 8
"""Ids in front of new ones that are decoded with them: some decoders write a text's first word otherwise."""
_UNFINISHED = "\ufffd"
_NO_IDS: Ids = np.empty(0, np.int32)


class Beginning:
    """Reads each id once, as they come; the whole reply begins with what it tells."""

    def __init__(self, decode: Callable[[Ids], str], stop_ids: Collection[int], *, opened: bool) -> None:
        """``opened``: as in `parse_reply`."""
        self._decode = decode
        self._stop_ids = stop_ids
        self._opened = opened
        self._context = _NO_IDS
        self._unread = _NO_IDS
        """Their text may not be over, or they may be the end of the turn."""
        self._text = ""

    def read(self, ids: Ids) -> Message:
        """What is sure after ``ids`` more, shape [n]: content and reasoning, no tool calls."""
        self._unread = np.concatenate([self._unread, ids])
        end = len(self._unread)
        while end and int(self._unread[end - 1]) in self._stop_ids:
            end -= 1
        read = np.concatenate([self._context, self._unread[:end]])
        text = self._decode(read)
        if not text.endswith(_UNFINISHED):
            self._text += text[len(self._decode(self._context)) :]
            self._context, self._unread = read[-_CONTEXT:], self._unread[end:]
        return parse_beginning(self._text, opened=self._opened)
