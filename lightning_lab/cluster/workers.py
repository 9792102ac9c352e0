"""The GPUs that a run asks for, and whether a cluster has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_lab.cluster.errors import WorkersMissingError

GPU_GIB: Mapping[str, float] = {
    "T4": 15.0,
    "L4": 22.0,
    "L40S": 44.0,
    "A10G": 22.0,
    "A100-40G": 39.0,
    "A100-80G": 79.0,
    "H100": 79.0,
    "H200": 140.0,
}
"""What CUDA reports of each kind, rounded down: a little less than the vendor's number."""
_PREFIX = "accelerator_type:"
"""How Ray names the kind of a node's GPUs among its resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """``gpus`` in all, of one ``kind`` (a key of `GPU_GIB`, or ``A100`` for either size); None: of any."""

    gpus: int = 0
    kind: str | None = None

    def __post_init__(self) -> None:
        if self.gpus < 0:
            raise ValueError(f"gpus is {self.gpus}; it must be at least 0.")
        kinds = ("A100", *GPU_GIB)
        if self.kind is not None and self.kind not in kinds:
            raise ValueError(f"There is no kind {self.kind!r} of GPU here. Use one of: {', '.join(kinds)}.")

    @property
    def gpu_gib(self) -> float | None:
        """Memory of one; None where the kind leaves it open."""
        return GPU_GIB.get(self.kind or "")

    def check(self, nodes: Sequence[Mapping[str, float]]) -> None:
        """``nodes``: the resources of each machine, in Ray's words. Raises `WorkersMissingError`."""
        found = sum(node.get("GPU", 0.0) for node in nodes if self._suits(node))
        if found >= self.gpus:
            return
        kinds = sorted({name.removeprefix(_PREFIX) for node in nodes for name in node if name.startswith(_PREFIX)})
        everything = sum(node.get("GPU", 0.0) for node in nodes)
        has = f"{everything:g} GPUs" + (f" ({', '.join(kinds)})" if kinds else "")
        wanted = f"{self.gpus} {self.kind or ''} GPUs".replace("  ", " ")
        raise WorkersMissingError(
            f"{wanted} are asked for, and the cluster has {has} on {len(nodes)} machines. "
            "Ask for fewer or for another kind, or add machines (ray start --address=…)."
        )

    def memory_gib(self, nodes: Sequence[Mapping[str, float]]) -> float | None:
        """GiB of the smallest GPU that suits. Where nodes tell less than ``kind`` leaves open, the smallest of its
        name counts; None where nothing tells."""
        if self.gpu_gib is not None:
            return self.gpu_gib
        told = {name.removeprefix(_PREFIX) for node in nodes if self._suits(node) for name in node}
        exact = [GPU_GIB[kind] for kind in told if kind in GPU_GIB]
        open_ones = [gib for kind, gib in GPU_GIB.items() if kind.partition("-")[0] in told | {self.kind}]
        return min(exact or open_ones, default=None)

    def _suits(self, node: Mapping[str, float]) -> bool:
        return self.kind is None or any(name.startswith(_PREFIX + self.kind) for name in node)
