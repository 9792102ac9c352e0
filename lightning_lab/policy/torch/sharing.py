"""Weights in GPU memory, for other processes of the machine (CUDA IPC). Not run on a GPU yet."""

from __future__ import annotations

from torch import Tensor, cuda
from torch.multiprocessing.reductions import reduce_tensor

from lightning_lab.policy.base import PolicyError, SharedWeight


def shared(name: str, tensor: Tensor) -> SharedWeight:
    """``tensor``, contiguous, on a GPU; whoever calls this keeps it alive while others read it."""
    if tensor.device.type != "cuda":
        raise PolicyError(
            f"Weights are handed over on a GPU only, and the learner's are on {tensor.device}. Use transfer='files'."
        )
    _, handle = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    gpu = str(cuda.get_device_properties(tensor.device).uuid)
    return SharedWeight(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), {gpu: handle})
