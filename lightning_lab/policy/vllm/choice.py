"""Which transfer of published weights a policy asked for, and with which learner that can be."""

from __future__ import annotations

from lightning_lab.policy.base import DetachedLearner, PolicyError, SendsWeights, SharesWeights
from lightning_lab.policy.vllm.broadcast import Broadcast
from lightning_lab.policy.vllm.handles import Handles
from lightning_lab.policy.vllm.transfer import Transfer

TRANSFERS = ("files", "ipc", "nccl")


def transfer_of(name: str, learner: DetachedLearner | None, *, collocated: bool) -> Transfer | None:
    """None: by files. Raises `PolicyError` for what cannot be."""
    if name not in TRANSFERS:
        raise PolicyError(f"transfer is {name!r}; it must be one of {', '.join(TRANSFERS)}.")
    if name == "files":
        return None
    if name == "ipc":
        if not isinstance(learner, SharesWeights):
            raise PolicyError("transfer='ipc' needs a learner that shares its weights: ll.Learner.torch or .verl.")
        return Handles(learner)
    if not isinstance(learner, SendsWeights):
        raise PolicyError("transfer='nccl' needs a learner that sends its weights: ll.Learner.torch or .verl.")
    if collocated:
        raise PolicyError(
            "transfer='nccl' sends weights to other GPUs, and collocated servers are on the learner's own: use "
            "transfer='ipc'."
        )
    return Broadcast(learner)
