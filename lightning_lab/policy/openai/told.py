"""The sampled tokens that an endpoint tells of, gathered over its events.

A stream tells a few tokens in every event: arrays are made of many at once, and not all of a long reply at its end,
when the event loop would stand still for it.
"""

from __future__ import annotations

from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lightning_lab.policy.openai.events import Buffer, id_array, texts_of
from lightning_lab.records import Floats, Ids

_Scalar = TypeVar("_Scalar", bound=np.generic)
_AT_ONCE = 1024
"""Tokens that are made an array."""
_UNKNOWN_LOGPROB = -9999.0
"""OpenAI's number for a token whose log-prob it does not know."""


class ToldTokens:
    """Ids, log-probs and texts as they were told."""

    def __init__(self) -> None:
        self.shifted: int | None = None
        """Where log-probs stopped to belong to ids for sure."""
        self._known = True
        self._ids: list[Ids] = []
        self._new_ids: list[int | None] = []
        self._logprobs: list[Floats] = []
        self._new_logprobs: list[float | None] = []
        self._count = 0
        """Tokens of whose log-probs was told, if only by silence."""
        self._sources: list[tuple[Buffer, int]] = []
        """What names the tokens, and how many of them; empty bytes for tokens without names."""

    def add(self, ids: list[int | None], logprobs: list[float | None] | None, source: Buffer) -> None:
        """What one event told; ``source``: the event itself."""
        if logprobs is None:
            logprobs, source = [None] * len(ids), b""
        if len(logprobs) != len(ids) and self.shifted is None:
            self.shifted = self._count
        self._count += len(logprobs)
        self._sources.append((source, len(logprobs)))
        self._new_ids += ids
        self._new_logprobs += logprobs
        if len(self._new_ids) >= _AT_ONCE or len(self._new_logprobs) >= _AT_ONCE:
            self._settle()

    @property
    def ids(self) -> Ids:
        """Shape [n], -1 for null."""
        self._settle()
        return _joined(self._ids, np.int32)

    @property
    def logprobs(self) -> Floats:
        """Shape [m], NaN for what is none."""
        self._settle()
        return _joined(self._logprobs, np.float32)

    @property
    def known(self) -> bool:
        """Whether every log-prob that was told is a number."""
        self._settle()
        return self._known

    @property
    def texts(self) -> list[str]:
        """One for every log-prob; empty where none was told."""
        if not any(source for source, _ in self._sources):
            return []
        named = (texts_of(source, count) if source else [""] * count for source, count in self._sources)
        return list(chain.from_iterable(named))

    def _settle(self) -> None:
        ids, self._new_ids = self._new_ids, []
        logprobs, self._new_logprobs = self._new_logprobs, []
        if logprobs:
            numbers = np.array(logprobs, np.float32)
            if not numbers.min() > _UNKNOWN_LOGPROB:  # also where one is NaN
                numbers[numbers <= _UNKNOWN_LOGPROB] = np.nan
                self._known = False
            self._logprobs.append(numbers)
        if ids:
            self._ids.append(id_array(ids))


def _joined(parts: list[npt.NDArray[_Scalar]], kind: type[_Scalar]) -> npt.NDArray[_Scalar]:
    """All parts as one, which takes their place."""
    if len(parts) != 1:
        parts[:] = [np.concatenate(parts) if parts else np.empty(0, kind)]
    return parts[0]
