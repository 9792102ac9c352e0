"""Weights from a learner's GPU memory into the servers': vLLM's weight transfer by CUDA IPC, over its HTTP routes.

Written to the interface of vLLM 0.32 and not run on a GPU. A server takes it with ``--weight-transfer-config
'{"backend": "ipc"}'`` and ``VLLM_ALLOW_INSECURE_SERIALIZATION=1``, because handles are pickled on their way.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_lab.policy.base import SharedWeight
from lightning_lab.policy.vllm.replicas import Replica

CONFIG = '{"backend": "ipc"}'


async def prepare(replica: Replica) -> None:
    """Once after a server's start: weights come one by one, not packed into a buffer."""
    await replica.connection.post("/init_weight_transfer_engine", {"init_info": {"packed": False}})


async def begin(replica: Replica) -> None:
    await replica.wait_ready()
    replica.torn = True
    await replica.connection.post("/start_weight_update")


async def take(replica: Replica, *, body: Mapping[str, Any]) -> None:
    await replica.connection.post("/update_weights", body, timeout_s=None)


async def end(replica: Replica) -> None:
    await replica.connection.post("/finish_weight_update", timeout_s=None)
    replica.torn = False


def update_body(weights: Sequence[SharedWeight]) -> dict[str, Any]:
    """A request to ``/update_weights``."""
    handles = [dict(weight.handles) for weight in weights]
    return {
        "update_info": {
            "names": [weight.name for weight in weights],
            "dtype_names": [weight.dtype for weight in weights],
            "shapes": [list(weight.shape) for weight in weights],
            "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode(),
        }
    }
