"""Whether the servers of a policy sample: they stand still, sleep or go on together; who comes back does as they do."""

from __future__ import annotations

import contextlib
import logging
import threading
from functools import partial

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.vllm.connection import Loop
from lightning_lab.policy.vllm.errors import EngineDiedError
from lightning_lab.policy.vllm.replicas import Replica, Replicas

_log = logging.getLogger(__name__)


class Standing:
    """Calls stay open in servers that stand still."""

    def __init__(self, loop: Loop, replicas: Replicas) -> None:
        self._loop, self._replicas = loop, replicas
        self._frozen = self._asleep = False
        self._telling = threading.Lock()
        """Held while servers are told to stand still or to go on: who comes back meanwhile does as the others."""

    def freeze(self) -> None:
        """Sample nothing more. Idempotent."""
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
        self.wake()
        self._frozen = False  # first: so does one that is started again meanwhile
        self._tell_all("/resume")

    def sleep(self) -> None:
        """Give the memory of weights and caches back until `thaw` or `wake`. On a CPU it stays."""
        self._frozen = self._asleep = True
        self._tell_all("/sleep?level=1&mode=keep")

    def wake(self) -> None:
        """Have the memory again, and stand still. Idempotent."""
        if self._asleep:
            self._tell_all("/wake_up")
            self._asleep = False
            self._tell_all("/pause?mode=keep")  # waking resumes

    def paused(self, replica: Replica) -> bool:
        """Whether one that comes back was told to stand still. Raises `PolicyError` where somebody else told it."""
        paused = bool(self._loop.wait(replica.connection.get("/is_paused")).get("is_paused"))
        if paused and not (self._frozen or replica.stands):
            raise PolicyError(
                f"{replica.name} is paused, perhaps by a lab that was killed. Let it go on (POST /wake_up, /resume), "
                "then open this lab again."
            )
        return paused

    def admit(self, replica: Replica, *, paused: bool) -> None:
        """One that has all that the others have: from now on it does as they do."""
        with self._telling:
            if self._frozen or paused:
                self._loop.wait(replica.connection.post("/pause?mode=keep" if self._frozen else "/resume"))
            replica.ready, replica.stands = True, self._frozen

    def _tell_all(self, path: str) -> None:
        with self._telling:
            self._replicas.each(partial(self._tell, path=path))

    def _tell(self, replica: Replica, *, path: str) -> None:
        if not replica.ready:
            return
        pid = None if replica.server is None else replica.server.pid
        try:
            self._loop.wait(replica.connection.post(path))
            replica.stands = path != "/resume"
        except EngineDiedError as error:
            if replica.server is None:
                raise
            # Nobody knows what it does now. It is started again, and finds things as they are then.
            _log.warning("%s Its process is ended, if it still runs.", error)
            replica.server.kill(pid)
