"""Which task comes next: a fresh permutation per pass, fixed by the seed, so that one number remembers the place."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


def task_at(cursor: int, size: int, seed: int) -> int:
    """Index of the task at position ``cursor`` of the endless sequence; each pass holds every task once."""
    return _order(cursor // size, size, seed)[cursor % size]


@lru_cache(maxsize=4)
def _order(epoch: int, size: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng([seed, epoch]).permutation(size).tolist())
