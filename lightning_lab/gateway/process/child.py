"""What runs in the gateway's process: the store's writer, the gateway, and the policy where it is not the kernel's.

It ends when the kernel says so, or when the kernel is gone: then what was put is committed, and nothing is left.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_lab.gateway.process.channel import Channel, Handler
from lightning_lab.gateway.process.policy import KernelPolicy
from lightning_lab.gateway.server import Gateway
from lightning_lab.policy.base import Policy
from lightning_lab.store import Store
from lightning_lab.store.schema import Durability
from lightning_lab.store.transaction import Put

_ORPHAN_CHECK_S = 2.0
_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the process starts with."""

    store: Path
    durability: Durability
    policy: Callable[[], Policy]
    """Makes the policy here; `KernelPolicy` where the kernel's own answers."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `Gateway`."""


class Process:
    """Everything that runs here."""

    def __init__(self, sock: socket.socket) -> None:
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(_THREADS)
        self._store: Store | None = None
        self._gateway: Gateway | None = None
        self._policy: Policy | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._subscribed = False
        handlers: dict[str, Handler] = {
            "start": lambda setup: self._threads.submit(self._start, setup),  # it may ask the kernel's policy
            "put": self._put,
            "subscribe": self._subscribe,
            "gateway": self._call,
            "chunk": self._chunk,
            "end": self._over.set,
        }
        self.channel = Channel(sock, handlers, self._over.set)

    def run(self, parent: int) -> None:
        """Until the kernel is gone, or says that it is enough."""
        self.channel.start()
        while not self._over.wait(_ORPHAN_CHECK_S) and os.getppid() == parent:
            pass
        if self._gateway is not None:
            self._gateway.close()
        if self._policy is not None:
            self._policy.close()
        if self._store is not None:
            self._store.close()
        self.channel.close()

    def _start(self, setup: Setup) -> None:
        self._store = Store(setup.store, durability=setup.durability)
        self._unwatch = self._store.watch(lambda: self.channel.tell("told", ()))
        self._policy = setup.policy()
        if isinstance(self._policy, KernelPolicy):
            self._policy.connect(self.channel)
        self._policy.start()
        self._gateway = Gateway(self._policy, self._store, **setup.options)
        gc.freeze()  # what was imported stays: no collection needs to look at it

    def _subscribe(self) -> None:
        """From now on the kernel wants to know the events themselves."""
        assert self._store is not None
        if not self._subscribed:
            self._subscribed = True
            self._store.subscribe(lambda events: self.channel.tell("told", list(events)))
        self._unwatch()  # last: no commit is told to nobody

    def _put(self, put: Put | None) -> Future[int]:
        assert self._store is not None and self._store._writer is not None
        return self._store._writer.submit(put)

    def _call(self, method: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Future[Any]:
        """A method or property of the gateway; in a thread, because several block."""
        return self._threads.submit(self._value, method, arguments, named)

    def _value(self, method: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        value = getattr(self._gateway, method)
        return value(*arguments, **named) if callable(value) else value

    def _chunk(self, number: int, chunk: Any) -> None:
        assert isinstance(self._policy, KernelPolicy)
        self._policy.chunk(number, chunk)


def main() -> None:
    """``python -m lightning_lab.gateway.process.child DESCRIPTOR PARENT``."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted cell is none of its business
    with contextlib.suppress(pickle.UnpicklingError):
        Process(socket.socket(fileno=descriptor)).run(parent)
    os._exit(0)  # threads that wait for the kernel do not keep it


if __name__ == "__main__":
    main()
