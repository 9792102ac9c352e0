"""A process group of one sender and its receivers, apart from all other groups of their processes; weights go over it.

Both ends have this file: a learner, and vLLM's workers in an environment of their own. It needs torch alone. Between
GPUs tensors go over NCCL, else over gloo; nothing is pickled.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import BroadcastOptions, ProcessGroupGloo

_LOOK_S = 0.001
"""Between two looks at whether a tensor has arrived."""


class GroupError(RuntimeError):
    """The members did not find each other, or one is gone. The group is of no use any more."""


@dataclass(frozen=True)
class Meeting:
    """Where the members find each other; plain data, as it is told to receivers."""

    host: str
    port: int
    token: str
    """Keeps groups apart. No secret: a store names its keys to whoever reaches its port."""
    size: int
    """Members; the sender is rank 0."""
    backend: str
    """``nccl`` or ``gloo``."""
    deadline_s: float
    """For all to join, and for tensors that are sent together to arrive."""


class Group:
    """Joined by being made, which waits for the others. Raises `GroupError`."""

    def __init__(self, meeting: Meeting, rank: int, store: Store) -> None:
        self._deadline_s = meeting.deadline_s
        timeout = timedelta(seconds=meeting.deadline_s)
        own = PrefixStore(meeting.token, store)
        make = _nccl if meeting.backend == "nccl" else _gloo
        try:
            own.set(_here(rank), "")
            if missing := absent(meeting, store, meeting.deadline_s):
                raise GroupError(missing)
            self._backend: Any = make(meeting, own, rank, timeout)
        except (OSError, RuntimeError) as error:
            raise GroupError(_first_line(error)) from error

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Fill everybody's with rank 0's; contiguous, of equal sizes. Raises `GroupError`."""
        if self._backend is None:
            raise GroupError("This end of the group is closed.")
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        flat = [tensor.view(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]
        failure = _failure([self._backend.broadcast([one], options) for one in flat], self._deadline_s)
        if failure:
            self.close()
            raise GroupError(failure)

    def close(self) -> None:
        """The others, who may be waiting, are told by a closed connection. Idempotent."""
        backend, self._backend = self._backend, None
        if backend is not None:
            with suppress(RuntimeError):
                backend.abort()


def invited(receivers: int, *, towards: str, backend: str, deadline_s: float) -> tuple[Meeting, TCPStore]:
    """By rank 0, which listens then where ``towards``, a host, can reach it. Raises `GroupError`."""
    try:
        host = address_towards(towards)
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        port = listener.getsockname()[1]
        timeout = timedelta(seconds=deadline_s)
        store = TCPStore(host, port, None, True, timeout, False, master_listen_fd=listener.detach())
    except (OSError, RuntimeError) as error:
        raise GroupError(_first_line(error)) from error
    meeting = Meeting(host, port, secrets.token_hex(16), receivers + 1, backend, deadline_s)
    PrefixStore(meeting.token, store).set(_here(0), "")
    return meeting, store


def joined(meeting: Meeting, rank: int) -> Group:
    """By a receiver. Raises `GroupError`."""
    try:
        store = TCPStore(meeting.host, meeting.port, None, False, timedelta(seconds=meeting.deadline_s), False)
    except RuntimeError as error:
        raise GroupError(
            f"The learner at {meeting.host}:{meeting.port} is not reached ({_first_line(error)})."
        ) from error
    return Group(meeting, rank, store)


def absent(meeting: Meeting, store: Store, wait_s: float) -> str:
    """Waits for all, so many seconds at most → who has not come, in words; nothing: all are there."""
    own, members = PrefixStore(meeting.token, store), [_here(rank) for rank in range(meeting.size)]
    try:
        own.wait(members, timedelta(seconds=wait_s))
        return ""
    except RuntimeError:
        count = sum(not own.check([one]) for one in members)
        return f"{count} of {meeting.size} members did not join within {meeting.deadline_s:g} s" if count else ""


def address_towards(host: str) -> str:
    """This machine's address on the way to ``host``; nothing is sent. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _here(rank: int) -> str:
    return f"here/{rank}"


def _failure(works: list[Any], deadline_s: float) -> str:
    """Waits for all → why one did not end well. It is not raised here: an error that is kept would keep the works, and
    they the connections, by whose end the others are told."""
    end = time.monotonic() + deadline_s
    for work in works:
        while not work.is_completed():
            if time.monotonic() > end:
                return f"weights did not arrive within {deadline_s:g} s"
            time.sleep(_LOOK_S)
        try:
            work.wait()
        except RuntimeError as error:
            return _first_line(error)
    return ""


def _first_line(error: BaseException) -> str:
    """Without the place in gloo's source, and its guesses."""
    said = (str(error) or type(error).__name__).partition("\n")[0]
    return re.sub(r"^\[\S+:\d+\] ", "", said).partition(". This is typically")[0]


def _gloo(meeting: Meeting, store: Store, rank: int, timeout: timedelta) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    options._devices = [ProcessGroupGloo.create_device(hostname=address_towards(meeting.host))]
    return ProcessGroupGloo(store, rank, meeting.size, options)


def _nccl(meeting: Meeting, store: Store, rank: int, timeout: timedelta) -> Any:
    """Its own watch would end the whole process when the others are late; it rests where waiting is asked to block."""
    from torch.distributed import ProcessGroupNCCL

    before = os.environ.get("TORCH_NCCL_BLOCKING_WAIT")
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    try:
        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        return ProcessGroupNCCL(store, rank, meeting.size, options)
    finally:
        if before is None:
            del os.environ["TORCH_NCCL_BLOCKING_WAIT"]
        else:
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = before
