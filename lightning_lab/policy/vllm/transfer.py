"""Published weights from a learner's memory into the servers', by vLLM's routes for weight transfer.

Written to the interface of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lightning_lab.policy.base import SharedWeight
from lightning_lab.policy.vllm.replicas import Replica, Replicas


class Transfer(Protocol):
    """How weights come otherwise than as files."""

    engine: str
    """Of the servers, as their factory names it."""
    pickles: bool
    """Whether the servers unpickle what they are sent."""

    async def prepare(self, replica: Replica) -> None:
        """Once after a server's start."""
        ...

    def meet(self, replicas: Replicas) -> None:
        """What must be so before a server is touched. Raises `PolicyError`; then all have their weights still."""
        ...

    def weights(self, replicas: Replicas) -> Iterator[Sequence[SharedWeight]]:
        """Has all servers take all weights, and tells which. Raises `PolicyError`."""
        ...


async def begin(replica: Replica) -> None:
    await replica.wait_ready()
    replica.holds = None
    await replica.connection.post("/start_weight_update")


async def end(replica: Replica, *, directory: Path) -> None:
    """``directory`` has the same weights."""
    await replica.connection.post("/finish_weight_update", timeout_s=None)
    replica.holds = directory


def update_info(weights: Sequence[SharedWeight]) -> dict[str, Any]:
    """What ``/update_weights`` is told of every kind of transfer."""
    return {
        "names": [weight.name for weight in weights],
        "dtype_names": [weight.dtype for weight in weights],
        "shapes": [list(weight.shape) for weight in weights],
    }


def shapes_of(weights: Sequence[SharedWeight]) -> Mapping[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in weights}
