"""vLLM's weight transfer by broadcast, on a group of torch.distributed's: NCCL between GPUs, gloo between CPUs.

Registered in the workers as ``lightning_lab`` (``--weight-transfer-config '{"backend": "lightning_lab"}'``). Routes,
fields of an update and the reload of layer after layer are those of vLLM's own ``nccl`` engine, which has no gloo, no
deadlines, and unpickles what it finds in the store.
"""

from dataclasses import dataclass
from typing import Any

import torch
from lightning_lab_group import Group, Meeting, joined  # type: ignore[import-not-found]
from lightning_lab_worker import pack_tied_output  # type: ignore[import-not-found]
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo


@dataclass
class JoinInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """What ``/init_weight_transfer_engine`` is told."""

    meeting: dict[str, Any]
    rank_offset: int
    """Rank of the server's first worker."""


class BroadcastEngine(NCCLWeightTransferEngine):  # type: ignore[misc]
    """A receiver. What fails ends its part in the group, so that the sender need not wait for the deadline."""

    init_info_cls = JoinInfo
    group: Group | None = None

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        self.shutdown()
        meeting = Meeting(**init_info.meeting)
        if meeting.backend == "nccl" and self.device.type != "cuda":
            raise ValueError(f"The learner sends over NCCL, and this server's weights are on {self.device}.")
        own = self.parallel_config
        worker = own.data_parallel_index * own.world_size + own.rank
        self.group = joined(meeting, init_info.rank_offset + worker)
        self._where = self.device if meeting.backend == "nccl" else torch.device("cpu")

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        """All that is named comes in one go; the sender keeps it small."""
        if self.group is None:
            raise RuntimeError("This server is in no group with a learner: /init_weight_transfer_engine comes first.")
        try:
            kinds = zip(update_info.shapes, update_info.dtype_names, strict=True)
            weights = [torch.empty(shape, dtype=getattr(torch, dtype), device=self._where) for shape, dtype in kinds]
            self.group.broadcast(weights)
            self.model.load_weights(zip(update_info.names, weights, strict=True))
        except BaseException:
            self.shutdown()
            raise

    def finish_weight_update(self) -> None:
        super().finish_weight_update()
        pack_tied_output(self.model)

    def shutdown(self) -> None:
        """Leave the group. Idempotent."""
        group, self.group = self.group, None
        if group is not None:
            group.close()
