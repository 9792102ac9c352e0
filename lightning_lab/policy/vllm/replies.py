"""What the servers of a policy sample: a rollout's replies from its own server, as they are sampled or whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence

from lightning_lab.policy.base import Chunk, PolicyError
from lightning_lab.policy.vllm.connection import Loop
from lightning_lab.policy.vllm.errors import EngineDiedError
from lightning_lab.policy.vllm.replicas import Replica, Replicas
from lightning_lab.policy.vllm.streaming import Streamed
from lightning_lab.policy.vllm.wire import chunk_of, generate_body
from lightning_lab.records import Ids, Sampling

_GENERATE = "/inference/v1/generate"
_FINISHED = ("stop", "length")


class Replies:
    """Each token with the version of the weights that sampled it."""

    def __init__(self, loop: Loop, replicas: Replicas, stop_ids: frozenset[int]) -> None:
        self._loop, self._replicas, self._stop_ids = loop, replicas, stop_ids

    async def to(
        self, rollout_id: str, prompt: Ids, sampling: Sampling, *, limit: int, early: bool
    ) -> AsyncGenerator[Chunk, None]:
        """From any event loop; ``early``: as it is sampled, else whole. Raises `EngineDiedError`, `PromptError`,
        `PolicyError`."""
        here = asyncio.get_running_loop()
        told: asyncio.Queue[Chunk | None] = asyncio.Queue()

        def tell(chunk: Chunk | None) -> None:
            with contextlib.suppress(RuntimeError):  # that loop has ended
                here.call_soon_threadsafe(told.put_nowait, chunk)

        async def reply() -> Chunk:
            return await self._sample(self._replicas.of(rollout_id), prompt, sampling, limit, tell if early else None)

        work = self._loop.submit(reply())
        work.add_done_callback(lambda _: tell(None))
        try:
            while (chunk := await told.get()) is not None:
                yield chunk
            if work.cancelled():
                raise PolicyError("The policy was closed while it answered.")
            yield work.result()
        finally:
            work.cancel()

    def to_all(self, prompts: Sequence[Ids], sampling: Sampling, *, limit: int) -> list[Chunk]:
        """Each prompt's, spread over the servers."""
        left = self._replicas.left
        work = [self._sample(left[at % len(left)], one, sampling, limit) for at, one in enumerate(prompts)]
        return [reply.result() for reply in [self._loop.submit(one) for one in work]]

    async def of(
        self, replica: Replica, prompt: Ids, sampling: Sampling, limit: int, tell: Callable[[Chunk], None] | None = None
    ) -> Chunk:
        """That server's reply, ready or not; with ``tell``, what was not told of it before."""
        version, greedy = replica.version, sampling.temperature == 0
        salt, stream = f"version {version}", tell is not None
        body = generate_body(prompt, sampling, limit=limit, stop_ids=self._stop_ids, salt=salt, stream=stream)
        try:
            with replica.call() as connection:
                if tell is None:
                    answer = await connection.post(_GENERATE, body, timeout_s=None)
                    chunk = chunk_of(answer, version=version, greedy=greedy)
                else:
                    reply = Streamed(version, greedy=greedy)
                    async for event in connection.events(_GENERATE, body):
                        if (sure := reply.add(event, replica.version)) is not None:
                            tell(sure)
                    chunk = reply.rest(replica.name)
        except EngineDiedError:
            if replica.server is None:
                self._replicas.lost(replica)
            raise
        if chunk.finish_reason not in _FINISHED:
            raise PolicyError(f"{replica.name} broke a reply off (finish reason {chunk.finish_reason!r}).")
        return chunk

    async def _sample(
        self, replica: Replica, prompt: Ids, sampling: Sampling, limit: int, tell: Callable[[Chunk], None] | None = None
    ) -> Chunk:
        await replica.wait_ready()
        return await self.of(replica, prompt, sampling, limit, tell)
