"""``transfer="nccl"``: the learner sends its weights to servers on other GPUs or machines, over a process group.

The servers' end is ``engine_side/lightning_lab_engine.py``. The group is made at the first publish and stays while the
same servers run; one that was started again, or a publish that failed, makes a new one necessary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from lightning_lab.policy.base import PolicyError, SendsWeights, SharedWeight
from lightning_lab.policy.vllm.errors import EngineDiedError
from lightning_lab.policy.vllm.replicas import Replica, Replicas, finished
from lightning_lab.policy.vllm.transfer import update_info

DEADLINE_S = 60.0
"""For all to join a group, and for what is sent together (about 1 GiB) to arrive."""
_ANSWER_S = 20.0
"""After that deadline, for a server to say that it has passed."""
_REASON_S = 5.0
"""How long servers are asked why the learner could not send."""


class Broadcast:
    """See `Transfer`."""

    engine, pickles = "lightning_lab", False

    def __init__(self, learner: SendsWeights) -> None:
        self._learner = learner
        self._members: Sequence[Replica] = ()

    async def prepare(self, replica: Replica) -> None:
        """A server that has just started is in no group."""
        self._members = ()

    def meet(self, replicas: Replicas) -> None:
        """All servers and the learner in one group."""
        if self._members and self._members == replicas.left:
            return
        self._members = ()
        members = replicas.left
        sizes = [asked.result() for asked in replicas.begin(_workers)]
        hosts = [replica.connection.host for replica in members if replica.connection.host]
        told = self._learner.invite(sum(sizes), towards=hosts[0] if hosts else "", deadline_s=DEADLINE_S)
        first = {replica: 1 + sum(sizes[:place]) for place, replica in enumerate(members)}
        joining = replicas.begin(lambda replica: _join(replica, told, first[replica]))
        try:
            while not self._learner.gather():
                finished([one for one in joining if one.done()])  # nobody waits for one that refuses
            finished(joining)
        except BaseException as error:
            self._learner.leave()  # first: no server waits in the group then
            if isinstance(error, PolicyError):
                raise _reason(error, joining) from error
            raise
        self._members = members

    def weights(self, replicas: Replicas) -> Iterator[Sequence[SharedWeight]]:
        members, self._members = self._members, ()  # until all have come
        taking: Sequence[Future[None]] = ()
        try:
            for weights in self._learner.send():  # sends those before
                finished(taking)
                taking = replicas.begin(partial(_take, weights=weights))
                yield weights
            finished(taking)
        except BaseException as error:
            self._learner.leave()
            if isinstance(error, PolicyError):
                raise _reason(error, taking) from error
            raise
        self._members = members


async def _workers(replica: Replica) -> int:
    """How many processes of a server take weights."""
    await replica.wait_ready()
    answer = await replica.connection.get("/get_world_size")
    return int(answer["world_size"])


async def _join(replica: Replica, meeting: Mapping[str, Any], rank_offset: int) -> None:
    body = {"init_info": {"meeting": meeting, "rank_offset": rank_offset}}
    await _within(replica, "/init_weight_transfer_engine", body)


async def _take(replica: Replica, *, weights: Sequence[SharedWeight]) -> None:
    await _within(replica, "/update_weights", {"update_info": update_info(weights)})


async def _within(replica: Replica, path: str, body: Mapping[str, Any]) -> None:
    try:
        await replica.connection.post(path, body, timeout_s=DEADLINE_S + _ANSWER_S)
    except EngineDiedError:
        replica.holds = None  # one that hangs is of no use
        raise


def _reason(error: PolicyError, asked: Sequence[Future[None]]) -> PolicyError:
    """With the servers' own words; what the learner says of a broken connection tells less."""
    done, late = wait(asked, _REASON_S)
    for future in late:
        future.cancel()
    said = [future.exception() for future in asked if future in done]
    return PolicyError(" ".join(dict.fromkeys(str(one) for one in (error, *said) if isinstance(one, PolicyError))))
