"""The servers of one policy together: begun, frozen, given other weights, or none of them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning_lab.policy.base import Chunk, PolicyError
from lightning_lab.policy.engines.versions import check_version
from lightning_lab.policy.vllm.connection import Connection, Loop
from lightning_lab.policy.vllm.errors import EngineDiedError, PublishError
from lightning_lab.policy.vllm.replicas import Replica, Replicas
from lightning_lab.policy.vllm.server import Server
from lightning_lab.policy.vllm.settings import Settings
from lightning_lab.policy.vllm.streaming import Streamed
from lightning_lab.policy.vllm.transfer import Transfer, begin, end, shapes_of
from lightning_lab.policy.vllm.weights import Weights
from lightning_lab.policy.vllm.wire import chunk_of, generate_body
from lightning_lab.records import Ids, Sampling

_GENERATE = "/inference/v1/generate"
_FINISHED = ("stop", "length")
_WARM_UP = Sampling(temperature=1.0, max_tokens=1)


class Fleet:
    """``weights``: what they serve, under the number ``version``."""

    def __init__(self, weights: Weights, *, stop_ids: frozenset[int], warm_up: Ids, transfer: Transfer | None) -> None:
        """``warm_up``: a prompt for the first reply of a server, which takes longer than others. ``transfer``: how
        weights come to servers that run; None: as files."""
        self.version = self._found = 0
        self._transfer = transfer
        self._weights, self._stop_ids, self._warm_up = weights, stop_ids, warm_up
        self._loop = Loop()
        self._replicas = Replicas(self._loop, self._begin, self._prepare)
        self._settings: Settings | None = None
        self._frozen = self._asleep = False
        self._telling = threading.Lock()
        """Held while servers are told to stand still or to go on: who comes back meanwhile does as the others."""

    @property
    def replicas(self) -> Sequence[Replica]:
        return self._replicas.all

    def start(self, places: Sequence[Mapping[str, str]], directory: Path, python: Path, settings: Settings) -> None:
        """A server at each place, on sockets in ``directory``, this user's alone.

        Raises `EngineStartError` and its kinds.
        """
        self._settings = settings
        self._replicas.start([self._local(f"vllm-{n}", directory, python, place) for n, place in enumerate(places)])

    def attach(self, urls: Sequence[str], key: str) -> None:
        """Servers that run already; what was published to them before keeps its version. Raises `PolicyError` if one
        does not answer, or in another version of vLLM."""
        self._replicas.start([Replica(Connection(url, name=f"The vLLM server {url}", key=key)) for url in urls])
        self.version = self._found = max(replica.version for replica in self.replicas)
        for replica in self.replicas:
            replica.holds = self._weights.current

    def close(self) -> None:
        """End what was started here. Idempotent."""
        self._replicas.close()
        self._loop.close()

    async def reply(
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

    def replies(self, prompts: Sequence[Ids], sampling: Sampling, *, limit: int) -> list[Chunk]:
        """Each prompt's, spread over the servers."""
        left = [replica for replica in self.replicas if replica.failure is None]
        work = [self._sample(left[at % len(left)], one, sampling, limit) for at, one in enumerate(prompts)]
        return [reply.result() for reply in [self._loop.submit(one) for one in work]]

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The server that has the least to do; one that is started again is worth the wait."""
        replica = min(self.replicas, key=lambda one: (one.failure is not None, not one.ready, one.open_calls))

        async def ask() -> dict[str, Any]:
            await replica.wait_ready()
            return await replica.connection.post(path, body)

        return self._loop.wait(ask())

    def freeze(self) -> None:
        """Sample nothing more; calls stay open in the servers. Idempotent."""
        self._frozen = True  # first: a server that is started again meanwhile stands still too
        try:
            self._tell_all("/pause?mode=keep")
        except PolicyError:
            with contextlib.suppress(PolicyError):
                self.thaw()  # those that stand still
            raise

    def thaw(self) -> None:
        """Go on; who sleeps wakes. Idempotent."""
        if not (self._frozen or self._asleep):
            return
        self._wake()
        self._frozen = False  # first: so does one that is started again meanwhile
        self._tell_all("/resume")

    def sleep(self) -> None:
        """Give the memory of weights and caches back until `thaw` or `switch`; calls stay open. On a CPU it stays."""
        self._frozen = self._asleep = True
        self._tell_all("/sleep?level=1&mode=keep")

    def switch(self, directory: Path, version: int) -> None:
        """All servers to the learner's weights, or none; sampling goes on afterwards in any case.

        ``directory`` has them as files. Raises `PublishError`.
        """
        earlier = self._weights.current
        self.freeze()
        try:
            self._wake()
            try:
                if self._transfer is None:
                    self._replicas.each(partial(self._reload, directory=directory))
                else:
                    self._hand_over(self._transfer, directory)
                self._replicas.each(partial(self._finish, directory=directory, version=version))
            except PolicyError as error:
                self._put_back(earlier, version, error)
                self._weights.discard(directory)
                raise PublishError(
                    f"Version {version} was not published, {self.version} samples on: {error}"
                ) from error
            self._weights.adopt(directory)
            self.version = version
        finally:
            self.thaw()

    def _reload(self, replica: Replica, *, directory: Path) -> None:
        self._loop.wait(replica.wait_ready())
        self._load(replica, directory)

    def _load(self, replica: Replica, directory: Path) -> None:
        post = replica.connection.post

        async def load() -> None:
            replica.holds = None
            try:
                await post("/collective_rpc", _reload("load_published", directory), timeout_s=None)  # in `engine_side`
            except PolicyError:
                if replica.server is not None:
                    raise
                await post("/collective_rpc", _reload("reload_weights", directory), timeout_s=None)
            replica.holds = directory

        self._loop.wait(load())

    def _hand_over(self, transfer: Transfer, directory: Path) -> None:
        given: dict[str, tuple[int, ...]] = {}
        try:
            transfer.meet(self._replicas)
            self._replicas.all_do(begin)
            for weights in transfer.weights(self._replicas):
                given.update(shapes_of(weights))
        except PolicyError:
            raise
        except Exception as error:  # of the learner's, who knows which
            raise PolicyError(f"The learner's weights did not leave it ({type(error).__name__}: {error}).") from error
        self._weights.check(given)
        self._replicas.all_do(partial(end, directory=directory))

    def _finish(self, replica: Replica, *, directory: Path, version: int) -> None:
        if replica.holds != directory:
            raise EngineDiedError(f"{replica.name} was started again meanwhile, with the weights before.")
        self._name(replica, version=version)

    def _name(self, replica: Replica, *, version: int) -> None:
        """The weights' version, and nothing cached of others."""
        post = replica.connection.post

        async def name() -> None:
            await post("/update_weight_version", {"new_version": str(version)})
            await post("/reset_prefix_cache?reset_running_requests=true")

        self._loop.wait(name())
        replica.version = version

    def _put_back(self, directory: Path, version: int, reason: PolicyError) -> None:
        try:
            self._replicas.each(partial(self._restore, directory=directory))
        except PolicyError as error:
            raise PublishError(
                f"Version {version} was not published ({reason}), and a server could not go back to {self.version}: "
                f"{error} Open the lab again and resume the run."
            ) from error

    def _restore(self, replica: Replica, *, directory: Path) -> None:
        """Back to the earlier weights, where it has not kept them: by a reload, or by a new process where it may hold
        a mixture. vLLM may go on with that after a reload that failed, also when another one succeeds."""
        with replica.lock:  # one that died is perhaps started again already
            if replica.failure is not None:
                raise replica.failure
            if replica.holds == directory:
                return
            foreign = self.version == self._found > 0  # somebody else's, of which there are no files here
            if replica.holds is not None and not foreign:
                self._reload(replica, directory=directory)
                self._name(replica, version=self.version)
            elif replica.server is None:
                words = f"{replica.name} may hold a mixture of weights, or others than before. Start it again."
                self._loop.wait(replica.give_up(EngineDiedError(words)))
            else:
                replica.ready = False
                replica.server.stop()
                try:
                    self._begin(replica)
                    self._prepare(replica)
                except PolicyError as error:
                    replica.failure = error
                    raise

    async def _sample(
        self, replica: Replica, prompt: Ids, sampling: Sampling, limit: int, tell: Callable[[Chunk], None] | None = None
    ) -> Chunk:
        """The reply; with ``tell``, what was not told of it before."""
        await replica.wait_ready()
        return await self._answer(replica, prompt, sampling, limit, tell)

    async def _answer(
        self, replica: Replica, prompt: Ids, sampling: Sampling, limit: int, tell: Callable[[Chunk], None] | None = None
    ) -> Chunk:
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

    def _tell_all(self, path: str) -> None:
        def tell(replica: Replica) -> None:
            try:
                if replica.ready:
                    self._loop.wait(replica.connection.post(path))
                    replica.stands = path != "/resume"
            except EngineDiedError:
                if replica.server is None:
                    raise  # else it is started again, and finds things as they are then

        with self._telling:
            self._replicas.each(tell)

    def _wake(self) -> None:
        if self._asleep:
            self._tell_all("/wake_up")
            self._asleep = False
            self._tell_all("/pause?mode=keep")  # waking resumes

    def _local(self, name: str, directory: Path, python: Path, place: Mapping[str, str]) -> Replica:
        assert self._settings is not None
        connection = Connection(f"unix://{directory / name}.sock", name=name)
        server = Server(
            name,
            directory,
            python=python,
            environment={**self._settings.environment(), **place},
            healthy=self._answers(connection),
            on_end=lambda status: self._replicas.died(replica, status),
        )
        replica = Replica(connection, server)
        return replica

    def _begin(self, replica: Replica) -> None:
        assert replica.server is not None and self._settings is not None
        replica.holds = self._weights.current
        replica.server.start(self._settings.arguments(replica.holds))

    def _prepare(self, replica: Replica) -> None:
        """Ready: in a version that the lab knows, with weights named by theirs, and the first reply behind it."""
        told = self._loop.wait(replica.connection.get("/version"))
        check_version("vllm", str(told.get("version")), where=replica.name)
        paused = bool(self._loop.wait(replica.connection.get("/is_paused")).get("is_paused"))
        if paused and not (self._frozen or replica.stands):
            raise PolicyError(
                f"{replica.name} is paused, perhaps by a lab that was killed. Let it go on (POST /wake_up, /resume), "
                "then open this lab again."
            )

        async def prepare() -> None:
            if replica.server is not None:  # others' servers tell themselves which weights they have
                await replica.connection.post("/update_weight_version", {"new_version": str(self.version)})
                replica.version = self.version
            if self._transfer is not None:
                await self._transfer.prepare(replica)
            if not paused:
                await self._answer(replica, self._warm_up, _WARM_UP, 1)

        # Who was away may have come back with its first weights.
        if replica.server is None and self.version > self._found:
            self._load(replica, self._weights.current)
            self._name(replica, version=self.version)
        elif replica.server is None:
            replica.version = self._told_version(replica)
        elif replica.holds != self._weights.current:  # others were published while it started
            self._load(replica, self._weights.current)
        self._loop.wait(prepare())
        with self._telling:
            if self._frozen or paused:
                self._loop.wait(replica.connection.post("/pause?mode=keep" if self._frozen else "/resume"))
            replica.ready, replica.stands = True, self._frozen

    def _told_version(self, replica: Replica) -> int:
        """Of the weights that somebody else's server has; 0 where nobody named them."""
        told = str(self._loop.wait(replica.connection.get("/weight_info")).get("weight_version"))
        return int(told) if told.isdigit() else 0

    def _answers(self, connection: Connection) -> Callable[[], bool]:
        def answers() -> bool:
            try:
                self._loop.wait(connection.get("/health", timeout_s=5.0))
            except PolicyError:
                return False
            return True

        return answers


def _reload(method: str, directory: Path) -> dict[str, Any]:
    return {"method": method, "kwargs": {"weights_path": str(directory)}}


def private_directory() -> Path:
    """For sockets, logs and published weights; this user's alone. ``TMPDIR`` says where."""
    return Path(tempfile.mkdtemp(prefix="lightning-lab-vllm-"))
