"""The servers of one policy together: begun, begun again, given other weights, or none of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.engines.versions import check_version
from lightning_lab.policy.vllm.connection import Connection, Loop
from lightning_lab.policy.vllm.errors import EngineDiedError, PublishError
from lightning_lab.policy.vllm.reloading import load, tell_version, told_version
from lightning_lab.policy.vllm.replicas import Replica, Replicas
from lightning_lab.policy.vllm.replies import Replies
from lightning_lab.policy.vllm.server import Server
from lightning_lab.policy.vllm.settings import Settings
from lightning_lab.policy.vllm.standing import Standing
from lightning_lab.policy.vllm.transfer import Transfer, begin, end, shapes_of
from lightning_lab.policy.vllm.weights import Weights
from lightning_lab.records import Ids, Sampling

_WARM_UP = Sampling(temperature=1.0, max_tokens=1)


class Fleet:
    """``weights``: what they serve, under the number ``version``."""

    def __init__(self, weights: Weights, *, stop_ids: frozenset[int], warm_up: Ids, transfer: Transfer | None) -> None:
        """``warm_up``: a prompt for the first reply of a server, which takes longer than others. ``transfer``: how
        weights come to servers that run; None: as files."""
        self.version = self._found = 0
        self._transfer = transfer
        self._weights, self._warm_up = weights, warm_up
        self._loop = Loop()
        self._replicas = Replicas(self._loop, self._begin, self._prepare)
        self.standing = Standing(self._loop, self._replicas)
        self.replies = Replies(self._loop, self._replicas, stop_ids)
        self._settings: Settings | None = None

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

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The server that has the least to do; one that is started again is worth the wait."""
        replica = min(self.replicas, key=lambda one: (one.failure is not None, not one.ready, one.open_calls))

        async def ask() -> dict[str, Any]:
            await replica.wait_ready()
            return await replica.connection.post(path, body)

        return self._loop.wait(ask())

    def switch(self, directory: Path, version: int) -> None:
        """All servers to the learner's weights, or none; sampling goes on afterwards in any case.

        ``directory`` has them as files. Raises `PublishError`.
        """
        earlier = self._weights.current
        self.standing.freeze()
        try:
            self.standing.wake()
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
            self.standing.thaw()

    def _reload(self, replica: Replica, *, directory: Path) -> None:
        self._loop.wait(replica.wait_ready())
        self._loop.wait(load(replica, directory))

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
        self._loop.wait(tell_version(replica, version))

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
                self._loop.wait(tell_version(replica, self.version))
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
        paused = self.standing.paused(replica)

        async def prepare() -> None:
            if replica.server is not None:  # others' servers tell themselves which weights they have
                await replica.connection.post("/update_weight_version", {"new_version": str(self.version)})
                replica.version = self.version
            if self._transfer is not None:
                await self._transfer.prepare(replica)
            if not paused:
                await self.replies.of(replica, self._warm_up, _WARM_UP, 1)

        # Who was away may have come back with its first weights.
        if replica.server is None and self.version > self._found:
            self._loop.wait(load(replica, self._weights.current))
            self._loop.wait(tell_version(replica, self.version))
        elif replica.server is None:
            replica.version = self._loop.wait(told_version(replica))
        elif replica.holds != self._weights.current:  # others were published while it started
            self._loop.wait(load(replica, self._weights.current))
        self._loop.wait(prepare())
        self.standing.admit(replica, paused=paused)

    def _answers(self, connection: Connection) -> Callable[[], bool]:
        def answers() -> bool:
            try:
                self._loop.wait(connection.get("/health", timeout_s=5.0))
            except PolicyError:
                return False
            return True

        return answers


def private_directory() -> Path:
    """For sockets, logs and published weights; this user's alone. ``TMPDIR`` says where."""
    return Path(tempfile.mkdtemp(prefix="lightning-lab-vllm-"))
