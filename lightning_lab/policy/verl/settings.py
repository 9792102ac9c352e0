"""What a learner on verl is asked to be. verl's own settings pass through under verl's own names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightning_lab.policy.verl.errors import SettingsError

STRATEGIES = ("fsdp2", "megatron")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlSettings:
    """Raises `SettingsError` for what can be seen to be wrong without verl; the rest is checked when it starts."""

    ranks: int = 1
    """Training processes, one per GPU; on CPUs one per core."""
    nodes: int = 1
    """Machines that the ranks are spread over evenly."""
    device: Literal["cpu", "cuda"] = "cpu"
    strategy: str = "fsdp2"
    """``fsdp2``; or ``megatron``, which is passed on and has never been run by this project."""
    address: str | None = None
    """Of a running Ray cluster (``auto``, ``host:port``); None: ``RAY_ADDRESS``, else one started for this learner."""
    python: str | None = None
    """Interpreter of an environment with verl; None: this one's where it has verl, else the one that
    ``lightning-lab engines install verl`` made."""
    collocated: bool = False
    """Each rank's bundle keeps a CPU and half of its GPU for inference servers, which run there while ranks rest."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Fields of verl's ``FSDPEngineConfig`` (``param_offload``, ``ulysses_sequence_parallel_size`` …) or
    ``McoreEngineConfig``."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of verl's ``HFModelConfig`` (``lora_rank``, ``enable_gradient_checkpointing``, ``external_lib`` …)."""
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    """Fields of verl's ``FSDPOptimizerConfig`` or ``McoreOptimizerConfig``; learning rate, weight decay and clipping
    are the trainer's."""
    checkpoint: Mapping[str, Any] = field(default_factory=dict)
    """Fields of verl's ``CheckpointConfig``."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise SettingsError(f"strategy is {self.strategy!r}; it must be one of {', '.join(STRATEGIES)}.")
        if self.device not in ("cpu", "cuda"):
            raise SettingsError(f"device is {self.device!r}; it must be 'cpu' or 'cuda'.")
        if self.ranks < 1 or self.nodes < 1 or self.ranks % self.nodes:
            raise SettingsError(f"{self.ranks} ranks on {self.nodes} nodes: each node must have as many, at least one.")
        for group, names in _OURS.items():
            taken = sorted(names.intersection(getattr(self, group)))
            if taken:
                raise SettingsError(f"{group} has {', '.join(taken)}, which is set elsewhere: {_ELSEWHERE[taken[0]]}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What each rank is built from; plain data."""

    directory: Path
    settings: VerlSettings
    forward_only: bool = False


_OURS: Mapping[str, frozenset[str]] = {
    "engine": frozenset({"strategy", "forward_only", "use_dynamic_bsz", "micro_batch_size_per_gpu"}),
    "model": frozenset({"path"}),
    "optimizer": frozenset({"lr", "weight_decay", "clip_grad"}),
}
_ELSEWHERE: Mapping[str, str] = {
    "strategy": "VerlSettings(strategy=…)",
    "forward_only": "learning is not forward only",
    "use_dynamic_bsz": "the lab's planner makes the micro-batches (token_budget of the trainer)",
    "micro_batch_size_per_gpu": "the lab's planner makes the micro-batches (token_budget of the trainer)",
    "path": "the policy's model",
    "lr": "learning_rate of the trainer",
    "weight_decay": "weight_decay of the trainer",
    "clip_grad": "max_grad_norm of the trainer",
}
