"""A policy without a model, and an agent without a library: everything between them is real.

Importable in kernels that tests start, therefore a module and not a conftest.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lightning_lab as ll
from lightning_lab.policy.base import Chunk, LossRow, PolicyError, Rendered, TokenStats, UpdateResult
from lightning_lab.records import Ids, Message, Sampling, Task

END = 256


class StandInPolicy:
    """Says ``yes`` or ``no`` by turns, byte by byte; learns nothing, counts versions."""

    can_learn = True
    context_length = 100_000

    def __init__(self, name: str = "stand-in", *, delay_s: float = 0.0, fail: str = "") -> None:
        self.name = name
        self.version = 0
        self.closed = False
        self._delay_s = delay_s
        self._fail = fail
        self._said = 0

    def start(self) -> None:
        if self._fail:
            raise PolicyError(self._fail)

    def close(self) -> None:
        self.closed = True

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        text = "".join(f"<{message.role}>{message.content}" for message in messages)
        return Rendered(ids=np.frombuffer(text.encode(), np.uint8).astype(np.int32))

    async def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        await asyncio.sleep(self._delay_s)
        self._said += 1
        ids = np.array([*(b"yes" if self._said % 2 else b"no"), END], np.int32)
        logprobs = np.full(len(ids), -0.5, np.float32)
        yield Chunk(
            ids=ids, logprobs=logprobs, versions=np.full(len(ids), self.version, np.int32), finish_reason="stop"
        )

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        return Message(role="assistant", content=self.decode(ids))

    def decode(self, ids: Ids) -> str:
        return bytes(int(i) for i in ids if 0 <= i < END).decode(errors="replace")

    def fingerprint(self) -> Mapping[str, str]:
        return {"model": self.name}

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        stats = []
        for row in (row for rows in micro_batches for row in rows):
            numbers = np.where(row.sample.mask, 0.5, np.nan).astype(np.float32)
            stats.append(TokenStats(entropy=numbers, logprobs=-numbers, ratio=numbers, clipped=numbers, loss=numbers))
        return UpdateResult(
            metrics={"entropy": 0.5, "grad_norm": 1.0, "approx_kl": 0.0, "clip_frac": 0.0}, tokens=stats
        )

    def publish(self, version: int) -> Mapping[str, float]:
        self.version = version
        return {}

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "version").write_text(str(self.version))

    def load(self, directory: Path) -> None:
        self.version = int((directory / "version").read_text())


@ll.harness
def asker(task: Task) -> str:
    """One model call, with nothing but the standard library."""
    body = {"model": "any", "messages": [{"role": "user", "content": task.prompt}]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


@ll.grader
def says_yes(task: Task, result: Any) -> float:
    return float(result.output == "yes")


def tasks(count: int = 8) -> Any:
    return ll.tasks.from_rows({"prompt": f"Is {i} a number?", "answer": "yes"} for i in range(count))
