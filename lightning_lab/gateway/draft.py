"""A call while it is being made."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from lightning_lab.gateway.calltree import Place
from lightning_lab.gateway.prompt import Prompt
from lightning_lab.policy.base import ChatReply, Chunk
from lightning_lab.records import Floats, Ids, Sampling

_SEED_STRIDE = 1_000_003
"""Calls of a rollout take seeds one after the other; the rest of an interrupted one must draw other numbers."""


class Draft:
    """What one generation has given so far."""

    def __init__(self, call_id: str, prompt: Prompt, place: Place, used: Sampling, ordinal: int) -> None:
        self.id = call_id
        self._prompt = prompt.ids
        self.kept, self.left = prompt.kept, prompt.left
        self.parent_id = prompt.turns[-1].call_id if prompt.turns else None
        self.place = place
        self.used = used
        self.ordinal = ordinal
        self.held_s = 0.0
        self.started_at = 0.0
        self.finished_at = 0.0
        self.reply: ChatReply | None = None
        """Where a chat-level endpoint answers: everything about the tokens is told by it."""
        self.finish_reason: str | None = None
        self._chunks: list[Chunk] = []
        self._aligned = True

    def start(self) -> None:
        """Admitted: generation begins, or goes on."""
        self.started_at = self.started_at or time.time()

    @property
    def can_go_on(self) -> bool:
        """Whether an interrupted generation may continue from its ids. An endpoint that answers in text has none, and
        a stop text could lie across the interruption, unseen."""
        return self.reply is None and not self.used.stop

    def rest(self) -> tuple[Ids, Sampling]:
        """What is left to sample: a prompt, which after an interruption ends with the tokens so far, and parameters."""
        done = self.ids
        if not len(done):
            return self.prompt, self.used
        used, seed = self.used, self.used.seed
        left = None if used.max_tokens is None else used.max_tokens - len(done)
        return np.concatenate([self.prompt, done]), replace(
            used, max_tokens=left, seed=None if seed is None else (seed + _SEED_STRIDE * len(done)) % 2**31
        )

    def add(self, chunk: Chunk) -> None:
        """The next sampled tokens."""
        self._chunks.append(chunk)
        self._aligned = self._aligned and len(chunk.ids) == len(chunk.logprobs) == len(chunk.versions)
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason

    def ids_since(self, chunk: int) -> tuple[Ids, int]:
        """The ids of all chunks but the first ``chunk``, shape [n], and how many chunks there are."""
        return _joined([one.ids for one in self._chunks[chunk:]], np.int32), len(self._chunks)

    def stop(self) -> None:
        """Generation has ended, well or not."""
        self.finished_at = time.time()
        self.started_at = self.started_at or self.finished_at

    @property
    def prompt(self) -> Ids:
        """What the model reads, shape [m]."""
        return self._prompt if self.reply is None else self.reply.prompt_ids

    @property
    def ids(self) -> Ids:
        """All sampled ids, shape [n]."""
        if self.reply is not None:
            return self.reply.ids
        return _joined([chunk.ids for chunk in self._chunks], np.int32)

    @property
    def logprobs(self) -> Floats:
        """Their log-probs, shape [n]; of another length where the policy's lists differ, so that nobody can place them.

        Lists that only add up to the same length, one too long where another was too short, are not kept.
        """
        if self.reply is not None:
            return self.reply.logprobs
        found = _joined([chunk.logprobs for chunk in self._chunks], np.float32)
        return found if self._aligned or len(found) != len(self.ids) else found[:0]

    @property
    def versions(self) -> Ids:
        """The policy versions that sampled them, shape [n]."""
        if self.reply is not None:
            return self.reply.versions
        return _joined([chunk.versions for chunk in self._chunks], np.int32)


def _joined(parts: list[np.ndarray], kind: type[np.generic]) -> np.ndarray:
    """One array; a single part is passed on as it is."""
    if len(parts) == 1:
        return parts[0].astype(kind, copy=False)
    return np.concatenate(parts).astype(kind, copy=False) if parts else np.empty(0, kind)
