"""The sampled tokens that an endpoint tells of, gathered over its events.

A stream tells a few tokens in every event: arrays are made of many at once, and not all of a long reply at its end,
when the event loop would stand still for it.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lightning_lab.policy.openai.events import Token, id_array
from lightning_lab.records import Floats, Ids

_Scalar = TypeVar("_Scalar", bound=np.generic)
_AT_ONCE = 1024
"""Tokens that are made an array."""
_UNKNOWN_LOGPROB = -9999.0
"""OpenAI's number for a token whose log-prob it does not know."""
_SILENT = Token()


class ToldTokens:
    """Ids, log-probs and texts as they were told."""

    def __init__(self) -> None:
        self.shifted: int | None = None
        """Where log-probs stopped to belong to ids for sure."""
        self._ids: list[Ids] = []
        self._new_ids: list[int | None] = []
        self._logprobs: list[Floats] = []
        self._tokens: list[Token] = []
        self._settled = 0
        """Tokens whose log-probs are in an array."""
        self._named = False

    def add(self, ids: list[int | None], tokens: list[Token] | None) -> None:
        """What one event told."""
        if tokens is None:
            tokens = [_SILENT] * len(ids)
        else:
            self._named = True
        if len(tokens) != len(ids) and self.shifted is None:
            self.shifted = len(self._tokens)
        self._new_ids += ids
        self._tokens += tokens
        if len(self._new_ids) >= _AT_ONCE or len(self._tokens) - self._settled >= _AT_ONCE:
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
    def texts(self) -> list[str]:
        """One for every log-prob; empty where none was told."""
        return [one.token or "" for one in self._tokens] if self._named else []

    def _settle(self) -> None:
        ids, self._new_ids = self._new_ids, []
        tokens, self._settled = self._tokens[self._settled :], len(self._tokens)
        if tokens:
            self._logprobs.append(_numbers([one.logprob for one in tokens]))
        if ids:
            self._ids.append(id_array(ids))


def _numbers(told: list[float | None]) -> Floats:
    numbers = np.array(told, np.float32)
    if not numbers.min() > _UNKNOWN_LOGPROB:  # also where one is NaN
        numbers[numbers <= _UNKNOWN_LOGPROB] = np.nan
    return numbers


def _joined(parts: list[npt.NDArray[_Scalar]], kind: type[_Scalar]) -> npt.NDArray[_Scalar]:
    """All parts as one, which takes their place."""
    if len(parts) != 1:
        parts[:] = [np.concatenate(parts) if parts else np.empty(0, kind)]
    return parts[0]
