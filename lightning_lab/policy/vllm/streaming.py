"""A reply that comes in events: told on as it comes, wherever it is sure which version sampled it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_lab.policy.base import Chunk, PolicyError
from lightning_lab.policy.vllm.wire import chunk_of, versions_of


class Streamed:
    """One reply, asked for while ``version`` sampled.

    A server tells the versions with its last event. A token that arrives while ``version`` is still the newest was
    sampled by it: others are published while nothing is sampled. What arrives later waits for the end.
    """

    def __init__(self, version: int, *, greedy: bool) -> None:
        self._version, self._greedy = version, greedy
        self._held: list[Chunk] = []
        self._told = 0
        self._spans: Sequence[Mapping[str, Any]] | None = None

    def add(self, event: Mapping[str, Any], newest: int) -> Chunk | None:
        """→ what may be told now; ``newest``: the version that is sampled with now. Raises `PolicyError`."""
        self._held.append(chunk_of(event, version=self._version, greedy=self._greedy))
        if self._held[-1].finish_reason is not None:
            self._spans = event["choices"][0].get("weight_versions")
        elif newest == self._version:
            chunk = _joined(self._held)
            self._held, self._told = [], self._told + len(chunk.ids)
            return chunk
        return None

    def rest(self, name: str) -> Chunk:
        """What was not told before, with the end. ``name``: of the server. Raises `PolicyError`."""
        if not self._held:
            raise PolicyError(f"{name} sent a reply without an end.")
        left = _joined(self._held)
        versions = versions_of(self._spans, self._told + len(left.ids), self._version)
        if (versions[: self._told] != self._version).any():
            raise PolicyError(
                f"{name} sampled this reply with weights that somebody else published to it meanwhile. One lab at a "
                "time may publish to a server."
            )
        return Chunk(
            ids=left.ids,
            logprobs=left.logprobs,
            versions=versions[self._told :],
            finish_reason=left.finish_reason,
        )


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    """One of several; where a log-prob has no place, there are fewer of them than ids."""
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(
        ids=np.concatenate([chunk.ids for chunk in chunks]),
        logprobs=np.concatenate([chunk.logprobs for chunk in chunks]),
        versions=np.concatenate([chunk.versions for chunk in chunks]),
        finish_reason=chunks[-1].finish_reason,
    )
