"""Requests both ways over one private socket, between the kernel and the gateway's process.

A socket pair that nobody else holds: what travels is pickled. Sending never blocks; what the other side asks is
answered in the order in which it came, unless its handler hands the work on. When one side is gone the other learns it
at once: the socket is the lifeline.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import queue
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_SIZE = struct.Struct("!Q")
_AT_ONCE = 1 << 16
_CLOSE_S = 5.0

Handler = Callable[..., Any]
"""Answers a request: with a value, or with a future of it."""


class ChannelClosedError(RuntimeError):
    """The process at the other end is gone."""


class Channel:
    """One end. Thread-safe. ``on_end`` is called once, when the other side is gone."""

    def __init__(self, sock: socket.socket, handlers: dict[str, Handler], on_end: Callable[[], None]) -> None:
        self._socket = sock
        self._handlers = handlers
        self._on_end = on_end
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended = False
        self._receiver = threading.Thread(target=self._receive, name="lightning-lab-channel-in", daemon=True)
        self._sender = threading.Thread(target=self._send, name="lightning-lab-channel-out", daemon=True)

    def start(self) -> None:
        self._receiver.start()
        self._sender.start()

    def ask(self, method: str, *arguments: Any) -> Future[Any]:
        """Have the other side do something; the future has its answer, or what it raised. Callbacks must be quick."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        number = next(self._numbers)
        with self._lock:
            if not self._ended:
                self._waiting[number] = future
        try:
            self._post((number, method, arguments))
        except Exception as error:  # what cannot be pickled
            self._waiting.pop(number, None)
            future.set_exception(error)
            return future
        if self._ended and self._waiting.pop(number, future) is future and not future.done():
            future.set_exception(_gone())
        return future

    def tell(self, method: str, *arguments: Any) -> None:
        """Have the other side do something, without an answer."""
        self._post((0, method, arguments))

    def in_receiver(self) -> bool:
        """Whether this is the thread in which answers arrive: it must not wait for one."""
        return threading.current_thread() is self._receiver

    def close(self) -> None:
        """Send what was said, then hang up. Idempotent."""
        self._outbox.put(None)
        self._wait_for(self._sender)
        self._hang_up()
        self._wait_for(self._receiver)
        self._socket.close()

    def _wait_for(self, thread: threading.Thread) -> None:
        if thread is not threading.current_thread():
            thread.join(_CLOSE_S)

    def _post(self, message: tuple[Any, ...]) -> None:
        self._outbox.put(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _send(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                parts = [_SIZE.pack(len(message)), message]
                while sum(map(len, parts)) < _AT_ONCE and not self._outbox.empty():
                    more = self._outbox.get()
                    if more is None:
                        self._socket.sendall(b"".join(parts))
                        return
                    parts += [_SIZE.pack(len(more)), more]
                self._socket.sendall(b"".join(parts))
        except OSError:
            self._hang_up()

    def _receive(self) -> None:
        try:
            with self._socket.makefile("rb", buffering=_AT_ONCE) as stream:
                while len(head := stream.read(_SIZE.size)) == _SIZE.size:
                    self._take(*pickle.loads(stream.read(_SIZE.unpack(head)[0])))
        except (OSError, EOFError, pickle.UnpicklingError, ValueError):
            pass
        self._end()

    def _take(self, number: int, method: str, content: Any) -> None:
        if method in ("=", "!"):
            future = self._waiting.pop(number, None)
            if future is not None and method == "=":
                future.set_result(content)
            elif future is not None:
                future.set_exception(content)
            return
        try:
            answer = self._handlers[method](*content)
        except Exception as error:
            self._answer(number, "!", error)
            return
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: self._answer_with(number, done))
        else:
            self._answer(number, "=", answer)

    def _answer_with(self, number: int, done: Future[Any]) -> None:
        error = done.exception()
        self._answer(number, "=" if error is None else "!", done.result() if error is None else error)

    def _answer(self, number: int, kind: str, content: Any) -> None:
        if not number:
            return
        try:
            self._post((number, kind, content))
        except Exception:  # an exception that cannot be pickled; its words can
            self._post((number, "!", RuntimeError(f"{type(content).__name__}: {content}")))

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        self._outbox.put(None)
        for future in waiting:
            if not future.done():
                future.set_exception(_gone())
        self._on_end()


def _gone() -> ChannelClosedError:
    return ChannelClosedError("The process at the other end of this channel is gone.")
