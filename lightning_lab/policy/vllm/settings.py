"""How a vLLM server is started: its arguments and its environment."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL_NAME = "policy"
"""Under which the servers serve, whatever the model: its directory changes with each publish."""
_CPU_KV_BYTES = 2**30
_NO_OUTSIDE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything but the model's directory. ``options`` are further arguments of ``vllm serve`` by their own names."""

    cpu: bool
    dtype: str
    context_length: int
    seed: int = 0
    kv_bytes: int | None = None
    """For keys and values; by default 1 GiB on a CPU, and of a GPU what vLLM takes."""
    threads: int | None = None
    """Of one server on a CPU; by default all cores."""
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    chat_template: Path | None = None
    transfer: str | None = None
    """vLLM's engine that takes published weights; None: they are read from files."""
    unpickles: bool = False
    """Whether that engine unpickles what the learner says."""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """GPUs of one server; 0 on a CPU."""
        sizes = (int(self.options.get(name, 1)) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
        return 0 if self.cpu else math.prod(sizes)

    def arguments(self, model: Path) -> list[str]:
        """Of the server; log-probs are those of the distribution that was sampled from."""
        arguments: dict[str, Any] = {
            "model": str(model),
            "served_model_name": MODEL_NAME,
            "dtype": self.dtype,
            "max_model_len": self.context_length,
            "seed": self.seed,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "enable_scale_out": True,
            "enforce_eager": self.cpu,
            "worker_extension_cls": "lightning_lab_worker.PublishedWeights",
            "tool_call_parser": self.tool_parser,
            "enable_auto_tool_choice": self.tool_parser is not None,
            "reasoning_parser": self.reasoning_parser,
            "chat_template": self.chat_template,
        }
        arguments["kv_cache_memory_bytes"] = self.kv_bytes or (_CPU_KV_BYTES if self.cpu else None)
        arguments["enable_sleep_mode"] = not self.cpu
        arguments["weight_transfer_config"] = json.dumps({"backend": self.transfer}) if self.transfer else None
        return [part for name, value in {**arguments, **self.options}.items() for part in _flag(name, value)]

    def environment(self) -> dict[str, str]:
        """Nothing is fetched and nothing is reported; the routes that pause and publish are open on the socket."""
        environment = {**_NO_OUTSIDE, "VLLM_SERVER_DEV_MODE": "1"}
        if self.unpickles:
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        if not self.cpu:
            return environment
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "KMP_BLOCKTIME": "1"}  # beside others, so nobody spins
        environment["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than it saves
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one worker lives in the engine's process: starts sooner
        if self.threads is not None:
            environment["OMP_NUM_THREADS"] = str(self.threads)
        return environment


def _flag(name: str, value: Any) -> list[str]:
    """``--max-model-len 4096``; a switch that is off, or a value that is not given, is left out."""
    flag = "--" + re.sub(r"[^a-z0-9]+", "-", name.lower())
    if value is None or value is False:
        return []
    return [flag] if value is True else [flag, str(value)]
