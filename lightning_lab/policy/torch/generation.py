"""One reply being sampled: its state in the engine, and its way back to the event loop that asked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from lightning_lab.policy.base import Chunk
from lightning_lab.records import Ids, Sampling

_UNIFORMS = 64


@dataclass(slots=True, eq=False)
class Generation:
    """State of one reply. The engine thread owns everything but ``cancelled``."""

    prompt: Ids
    sampling: Sampling
    limit: int
    """Most tokens that may be sampled: the request's own limit and what the context leaves."""
    seed: tuple[int, ...]
    deliver: Callable[[Chunk | Exception], None]
    loop: asyncio.AbstractEventLoop | None = None
    """Where ``deliver`` runs; None: in the engine thread."""
    cancelled: bool = False
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    sent: int = 0
    """How many of the sampled tokens were delivered."""
    uniforms: Iterator[float] = field(init=False)

    def __post_init__(self) -> None:
        self.uniforms = _uniforms(self.seed)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.ids)

    def all_ids(self) -> Ids:
        """Prompt and reply so far: what a row must read to go on."""
        return np.concatenate([self.prompt, np.asarray(self.ids, dtype=np.int32)]) if self.ids else self.prompt

    def take_chunk(self, finish_reason: str | None) -> Chunk:
        """What was sampled since the last chunk."""
        start, self.sent = self.sent, len(self.ids)
        return Chunk(
            ids=np.asarray(self.ids[start:], dtype=np.int32),
            logprobs=np.asarray(self.logprobs[start:], dtype=np.float32),
            versions=np.asarray(self.versions[start:], dtype=np.int32),
            finish_reason=finish_reason,
        )


def _uniforms(seed: tuple[int, ...]) -> Iterator[float]:
    """Numbers in [0, 1) that depend on the seed only: never on what else is in the batch."""
    generator = np.random.default_rng(seed)
    while True:
        yield from generator.random(_UNIFORMS).tolist()


class Outbox:
    """Collects what generations deliver and wakes each event loop once per flush."""

    def __init__(self) -> None:
        self._pending: dict[asyncio.AbstractEventLoop, deque[tuple[Generation, Chunk | Exception]]] = {}

    def put(self, generation: Generation, item: Chunk | Exception) -> None:
        if generation.loop is None:
            generation.deliver(item)
        else:
            self._pending.setdefault(generation.loop, deque()).append((generation, item))

    def flush(self) -> None:
        for loop, items in self._pending.items():
            try:
                loop.call_soon_threadsafe(_deliver_all, items)
            except RuntimeError:  # the loop is closed: nobody waits for these any more
                for generation, _ in items:
                    generation.cancelled = True
        self._pending = {}


def _deliver_all(items: deque[tuple[Generation, Chunk | Exception]]) -> None:
    for generation, item in items:
        generation.deliver(item)
