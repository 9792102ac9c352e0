"""The learner's end of a group with the servers that sample: rank 0, who sends its weights."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from lightning_lab.policy.base import PolicyError, SharedWeight
from lightning_lab.policy.engine_side.lightning_lab_group import Group, GroupError, absent, invited

PART_BYTES = 1 << 30
"""Of weights that are handed over together: what a server holds beside its own."""

_LOOK_S = 0.5
"""How long one look at who has joined takes."""

Named = tuple[str, Tensor]


class Sender:
    """One group at a time. Methods raise `PolicyError`; the group is of no use then."""

    def __init__(self) -> None:
        self._group: Group | None = None
        self._store: Store | None = None
        """Where members meet, until they have."""

    def invite(self, receivers: int, *, towards: str, device: torch.device, deadline_s: float) -> Mapping[str, Any]:
        """Leave the last group and open another → what its ``receivers`` are told, with which they find it.

        ``towards``: a host's name; the group is opened where that one can reach it.
        """
        self.leave()
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            self._meeting, self._store = invited(receivers, towards=towards, backend=backend, deadline_s=deadline_s)
        except GroupError as error:
            raise PolicyError(f"The learner cannot listen for servers towards {towards} ({error}).") from error
        self._end = time.monotonic() + deadline_s
        return asdict(self._meeting)

    def gather(self) -> bool:
        """Whether all have come, after a moment."""
        assert self._store is not None
        try:
            if missing := absent(self._meeting, self._store, _LOOK_S):
                if time.monotonic() < self._end:
                    return False
                raise GroupError(missing)
            self._group = Group(self._meeting, 0, self._store)
        except GroupError as error:
            self.leave()
            raise PolicyError(
                f"The learner's group at {self._meeting.host}:{self._meeting.port} was not made: {error}. Every server "
                "must reach that machine, on any port."
            ) from error
        self._store = None  # which the group keeps as long as it lasts
        return True

    def send(self, weights: Sequence[Named]) -> None:
        """To all of the group."""
        if self._group is None:
            raise PolicyError("The learner is in no group with servers.")
        try:
            self._group.broadcast([tensor.detach().contiguous() for _, tensor in weights])
        except GroupError as error:
            self.leave()
            raise PolicyError(f"Sending the weights broke off ({error}).") from error

    def leave(self) -> None:
        """Idempotent."""
        group, self._group, self._store = self._group, None, None
        if group is not None:
            group.close()


def parts(weights: Iterable[Named]) -> Iterator[list[Named]]:
    """Weights in the order in which they come, as many together as fit into `PART_BYTES`."""
    held: list[Named] = []
    size = 0
    for name, tensor in weights:
        held.append((name, tensor))
        size += tensor.nbytes
        if size > PART_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def described(weights: Sequence[Named]) -> list[SharedWeight]:
    """What is sent, without where it lies."""
    return [SharedWeight(name, str(one.dtype).removeprefix("torch."), tuple(one.shape)) for name, one in weights]
