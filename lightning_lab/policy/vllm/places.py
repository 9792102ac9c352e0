"""Which GPUs each server runs on when it shares those of a learner."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from lightning_lab.policy.base import PolicyError, Seat


def places(seats: Sequence[Seat], servers: int) -> list[dict[str, str]]:
    """By server, what its environment says about its GPUs: those of as many ranks for each, in order.

    Without GPUs it says nothing. Raises `PolicyError` for more servers than ranks, and for seats on other machines:
    servers are programs of this one.
    """
    each = len(seats) // servers
    if not each:
        raise PolicyError(
            f"{servers} servers cannot share the GPUs of {len(seats)} ranks. Ask for fewer replicas, or for a learner "
            "with places for servers: ll.Learner.verl(ranks=…, collocated=True)."
        )
    away = sorted({seat.host for seat in seats if seat.devices} - {socket.gethostname()})
    if away:
        raise PolicyError(
            f"The learner's GPUs are on {', '.join(away)}, and collocated servers run on the lab's own machine. Run "
            "the lab there, or start vLLM there and give url=…."
        )
    groups = [seats[number * each : (number + 1) * each] for number in range(servers)]
    devices = [",".join(seat.devices for seat in group if seat.devices) for group in groups]
    return [{"CUDA_VISIBLE_DEVICES": named} if named else {} for named in devices]
