"""``transfer="ipc"``: servers on the learner's own GPUs read its weights there (CUDA IPC). Not run on a GPU.

A server takes it with ``--weight-transfer-config '{"backend": "ipc"}'`` and ``VLLM_ALLOW_INSECURE_SERIALIZATION=1``,
because handles are pickled on their way.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from functools import partial

from lightning_lab.policy.base import SharedWeight, SharesWeights
from lightning_lab.policy.vllm.replicas import Replica, Replicas
from lightning_lab.policy.vllm.transfer import update_info


class Handles:
    """See `Transfer`."""

    engine, pickles = "ipc", True

    def __init__(self, learner: SharesWeights) -> None:
        self._learner = learner

    async def prepare(self, replica: Replica) -> None:
        """Weights come one by one, not packed into a buffer."""
        await replica.connection.post("/init_weight_transfer_engine", {"init_info": {"packed": False}})

    def meet(self, replicas: Replicas) -> None:
        """A handle needs nobody to wait for it."""

    def weights(self, replicas: Replicas) -> Iterator[Sequence[SharedWeight]]:
        for weights in self._learner.share():
            replicas.all_do(partial(_take, weights=weights))
            yield weights


async def _take(replica: Replica, *, weights: Sequence[SharedWeight]) -> None:
    pickled = base64.b64encode(pickle.dumps([dict(weight.handles) for weight in weights])).decode()
    body = {"update_info": {**update_info(weights), "ipc_handles_pickled": pickled}}
    await replica.connection.post("/update_weights", body, timeout_s=None)
