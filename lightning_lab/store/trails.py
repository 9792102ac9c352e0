"""Which earlier call a new call continues, so that only its new part is stored.

A trail holds the calls of one rollout attempt that nothing has continued yet (the leaves). A call that another one
continues to its end needs no place: whatever shares a prefix with it shares at least that prefix with the other. So
memory is linear in the length of the conversation, not quadratic. Of many conversations the oldest go: what continues
one of those is stored whole, once.
This is about bytes on disk only: which call *trains* as the continuation of which is decided in ``samples``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from lightning_lab.records import Ids

Refs = npt.NDArray[np.int64]
"""Ids in the ``contents`` table, shape [n]."""

_IDS, _MESSAGES = attrgetter("ids"), attrgetter("messages")
_FIRST_BLOCK = 1024
_LAST_BLOCK = 1 << 18
_MOST_LEAVES, _MOST_BYTES = 16, 1 << 20
"""Ends of conversations that are compared with a new call, and their memory; the oldest goes."""
FEW_LEAVES = 8
"""Are kept whatever their size: an agent and its sub-agents."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A stored call: row number, prompt + sampled ids, messages."""

    call: int
    ids: Ids
    messages: Refs

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.messages.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """The leaf to build on, and how much of it."""

    leaf: Leaf | None
    ids: int
    messages: int


class Trail:
    """The leaves of one rollout attempt."""

    def __init__(self) -> None:
        self._leaves: dict[int, Leaf] = {}
        """By their call, oldest first."""
        self.nbytes = 0
        """Memory that it keeps."""

    def base(self, prompt: Ids, messages: Refs) -> Base:
        """The leaf that shares the longest prefix with ``prompt``; by messages where no id is shared."""
        leaf, length = self._longest(_IDS, prompt)
        if leaf is None:
            leaf, _ = self._longest(_MESSAGES, messages)
        if leaf is None:
            return Base(None, 0, 0)
        return Base(leaf, length, common_prefix(leaf.messages, messages))

    def _longest(
        self, of: Callable[[Leaf], npt.NDArray[np.signedinteger]], wanted: npt.NDArray[np.signedinteger]
    ) -> tuple[Leaf | None, int]:
        best, length = None, 0
        for leaf in reversed(self._leaves.values()):  # latest first
            if length == len(wanted):
                break
            candidate = of(leaf)
            if len(candidate) <= length or candidate[length] != wanted[length]:
                continue  # cannot be longer than the best so far
            common = common_prefix(candidate, wanted)
            if common > length:
                best, length = leaf, common
        return best, length

    def add(self, leaf: Leaf, base: Base) -> None:
        """``leaf`` was stored on ``base``."""
        self.nbytes += leaf.nbytes
        covered = base.leaf
        if covered is not None and (base.ids, base.messages) == (len(covered.ids), len(covered.messages)):
            self._drop(covered)
        self._leaves[leaf.call] = leaf
        while len(self._leaves) > (FEW_LEAVES if self.nbytes > _MOST_BYTES else _MOST_LEAVES):
            self._drop(next(iter(self._leaves.values())))

    def _drop(self, leaf: Leaf) -> None:
        del self._leaves[leaf.call]
        self.nbytes -= leaf.nbytes


def common_prefix(a: npt.NDArray[np.signedinteger], b: npt.NDArray[np.signedinteger]) -> int:
    """How many leading elements are equal. Early differences cost little: blocks grow from small to large."""
    end = min(len(a), len(b))
    if not end or a[0] != b[0]:  # as most messages
        return 0
    start, block = 0, _FIRST_BLOCK
    while start < end:
        stop = min(start + block, end)
        differs = a[start:stop] != b[start:stop]
        first = int(differs.argmax())
        if differs[first]:
            return start + first
        start, block = stop, min(block * 2, _LAST_BLOCK)
    return end
