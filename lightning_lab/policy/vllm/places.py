"""Which GPUs each server runs on: its own, or those that it shares with a learner."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from lightning_lab.policy.base import PolicyError, Seat
from lightning_lab.policy.vllm.errors import EngineStartError


def own_places(servers: int, each: int, visible: str | None) -> list[dict[str, str]]:
    """The next ``each`` of the ``visible`` GPUs (CUDA's variable) for every server; 0: says nothing.

    Raises `EngineStartError` when there are too few.
    """
    named = visible.split(",") if visible else [str(device) for device in range(servers * each)]
    if servers * each > len(named):
        raise EngineStartError(
            f"{servers} servers of {each} GPUs need {servers * each}, and {len(named)} are visible. Use fewer "
            "replicas, or a smaller tensor_parallel_size."
        )
    groups = [named[number * each : (number + 1) * each] for number in range(servers)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(group)} if group else {} for group in groups]


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
