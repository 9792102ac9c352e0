"""A policy that lives in the kernel, asked from the gateway's process.

A generation is a stream of chunks that the kernel pushes. Rendering, parsing and decoding wait for the kernel, unless
the policy shows a `Codec`: then they are done here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from lightning_lab.gateway.process.channel import Channel, Handler
from lightning_lab.policy.base import Beginning, Chunk, Policy, Rendered, RenderError
from lightning_lab.records import Ids, Message, Sampling

_THREADS = 4


class KernelPolicy:
    """The gateway's side: a `Policy` that only answers."""

    can_learn = False

    def __init__(self, name: str, context_length: int, encodes: bool, freezes: bool) -> None:
        self.name = name
        self.context_length = context_length
        self._numbers = itertools.count(1)
        self._streams: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Queue[Any]]] = {}
        self._channel: Channel | None = None
        if encodes:
            self.encode = self._encode
        if freezes:
            self.freeze, self.thaw = (partial(self._ask, name) for name in ("freeze", "thaw"))

    def connect(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def version(self) -> int:
        return int(self._ask("version"))

    def start(self) -> None: ...

    def close(self) -> None: ...

    def fingerprint(self) -> Mapping[str, str]:
        return {}

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        rendered: Rendered = self._ask("render", messages, tools)
        return rendered

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        message: Message = self._ask("parse", ids, tools)
        return message

    def decode(self, ids: Ids) -> str:
        return str(self._ask("decode", ids))

    def _encode(self, text: str) -> Ids:
        ids: Ids = self._ask("encode", text)
        return ids

    async def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        assert self._channel is not None
        number = next(self._numbers)
        chunks: asyncio.Queue[Any] = asyncio.Queue()
        self._streams[number] = (asyncio.get_running_loop(), chunks)
        try:
            self._channel.tell("generate", number, prompt, sampling, rollout_id)
            while (chunk := await chunks.get()) is not None:
                if isinstance(chunk, BaseException):
                    raise chunk
                yield chunk
        finally:
            del self._streams[number]
            self._channel.tell("stop_generation", number)

    def chunk(self, number: int, chunk: Chunk | BaseException | None) -> None:
        """From the kernel: the next chunk of a generation, why it failed, or None for its end."""
        stream = self._streams.get(number)
        if stream is not None:
            loop, chunks = stream
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    def _ask(self, method: str, *arguments: Any) -> Any:
        assert self._channel is not None
        return self._channel.ask("policy", method, arguments).result()


class Codec(Protocol):
    """Conversation → ids → reply, without the model. It travels to the gateway's process by pickle."""

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Ids: ...

    def encode(self, text: str) -> Ids: ...

    def decode(self, ids: Ids) -> str: ...

    def parse(self, ids: Ids) -> Message: ...

    def beginning(self) -> Beginning: ...


class CodecPolicy(KernelPolicy):
    """One whose kernel is asked to generate, and for nothing else: a busy cell does not keep a conversation waiting."""

    def __init__(self, codec: Codec, name: str, context_length: int, encodes: bool, freezes: bool) -> None:
        super().__init__(name, context_length, encodes, freezes)
        self._codec = codec

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        from lightning_lab.tokens import TemplateError  # needs a tokenizer library, which whoever has a codec has

        try:
            return Rendered(ids=self._codec.render(messages, tools))
        except TemplateError as error:
            raise RenderError(str(error)) from error

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        return self._codec.parse(ids)

    def beginning(self) -> Beginning:
        return self._codec.beginning()

    def decode(self, ids: Ids) -> str:
        return self._codec.decode(ids)

    def _encode(self, text: str) -> Ids:
        return self._codec.encode(text)


class PolicyService:
    """The kernel's side: answers for the policy, off the channel's own threads."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._channel: Channel | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lightning-lab-policy")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lightning-lab-generations", daemon=True)

    @property
    def handlers(self) -> dict[str, Handler]:
        return {"policy": self._answer, "generate": self._generate, "stop_generation": self._stop}

    def start(self, channel: Channel) -> None:
        self._channel = channel
        self._thread.start()

    def close(self) -> None:
        """End all generations. Idempotent."""
        if self._loop.is_closed() or not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._threads.shutdown()

    def _answer(self, method: str, arguments: tuple[Any, ...]) -> Future[Any]:
        return self._threads.submit(lambda: self._value(method, arguments))

    def _value(self, method: str, arguments: tuple[Any, ...]) -> Any:
        value = getattr(self._policy, method)
        return value(*arguments) if callable(value) else value

    def _generate(self, number: int, prompt: Ids, sampling: Sampling, rollout_id: str) -> None:
        self._loop.call_soon_threadsafe(self._begin, number, prompt, sampling, rollout_id)

    def _begin(self, number: int, *asked: Any) -> None:
        self._tasks[number] = task = self._loop.create_task(self._push(number, *asked))
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def _stop(self, number: int) -> None:
        def stop() -> None:
            task = self._tasks.get(number)
            if task is not None:
                task.cancel()

        self._loop.call_soon_threadsafe(stop)

    async def _push(self, number: int, prompt: Ids, sampling: Sampling, rollout_id: str) -> None:
        assert self._channel is not None
        try:
            chunks = self._policy.generate(prompt, sampling, rollout_id=rollout_id)
            try:
                async for chunk in chunks:
                    self._channel.tell("chunk", number, chunk)
            finally:
                close = getattr(chunks, "aclose", None)
                if close is not None:
                    await close()
            self._channel.tell("chunk", number, None)
        except Exception as error:
            self._channel.tell("chunk", number, error)

    async def _cancel_all(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
