"""Does the embedded torch policy do on a GPU what it does on a CPU? One short check, for the first time one is at hand.

    python benchmarks/gpu_check.py                              # the quickstart checkpoint in bfloat16 on cuda:0
    python benchmarks/gpu_check.py --model PATH --tokens 256    # a real model
    python benchmarks/gpu_check.py --device cpu --dtype float32 # proves the script itself

Needs torch, transformers and this package. It samples a batch, updates on what was sampled, publishes, and samples
again; it prints one JSON object: tokens per second, seconds of the update and of the publish, how far the learner's
log-probs of the sampled tokens are from the engine's (mean and largest |Δ|, in nats), whether weights and versions
moved, and peak memory beside the memory plan's. ``ok`` is false, and the exit code 1, when something is not finite or
the log-probs are further apart than ``--tolerance``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import resource
import sys
import time
from typing import Any

import numpy as np
import torch

from lightning_lab.planning import EngineLayout, Layout, ModelShape, UnknownShapeError, plan_memory
from lightning_lab.policy.base import Chunk, LossRow
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.records import Ids, Sample, Sampling

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
"""Nats. bfloat16 has 8 bits of mantissa, and engine and learner add in different orders; float32 agrees closely."""


def main() -> int:
    options = _options()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            "There is no GPU here that torch can use (torch.cuda.is_available() is False). Install a CUDA build of "
            "torch on a machine with an NVIDIA GPU, or prove the script with --device cpu --dtype float32.",
            file=sys.stderr,
        )
        return 2
    report = asyncio.run(check(options))
    print(json.dumps(report, indent=1))
    return 0 if report["ok"] else 1


async def check(options: argparse.Namespace) -> dict[str, Any]:
    """Sample, update, publish, sample again."""
    policy = TorchPolicy(options.model, device=options.device, dtype=options.dtype, max_batch=options.rows)
    try:
        began = time.perf_counter()
        policy.start()
        started_s = time.perf_counter() - began
        prompt = policy.encode("What is 1 + 1?")
        await _sample_all(policy, prompt, 1, 4)  # compiles and allocates: not timed
        began = time.perf_counter()
        replies = await _sample_all(policy, prompt, options.rows, options.tokens)
        sampling_s = time.perf_counter() - began
        rows = [_row(prompt, reply, index) for index, reply in enumerate(replies)]
        before = policy.fingerprint()["model"]
        began = time.perf_counter()
        result = policy.update([rows], loss="ppo_clip", options={}, learning_rate=1e-5)
        _synchronize(options.device)
        update_s = time.perf_counter() - began
        began = time.perf_counter()
        policy.publish(policy.version + 1)
        _synchronize(options.device)
        publish_s = time.perf_counter() - began
        after = await _sample_all(policy, prompt, options.rows, 8)
        gaps = _gaps(rows, [stats.logprobs for stats in result.tokens])
        tokens = sum(len(ids) for ids, _, _ in replies)
        report = {
            "device": torch.cuda.get_device_name(0) if options.device.startswith("cuda") else "cpu",
            "torch": torch.__version__,
            "model": str(options.model),
            "dtype": options.dtype,
            "start_s": started_s,
            "sampled_tokens": tokens,
            "tokens_per_s": tokens / sampling_s,
            "update_s": update_s,
            "publish_s": publish_s,
            "logprob_mean_abs_diff": float(gaps.mean()),
            "logprob_max_abs_diff": float(gaps.max()),
            "grad_norm": result.metrics["grad_norm"],
            "weights_changed": policy.fingerprint()["model"] != before,
            "versions_after": sorted({int(version) for _, _, versions in after for version in versions}),
            "peak_gib": _peak_gib(options.device),
            "planned_gib": _planned_gib(options, len(prompt), rows),
        }
    finally:
        policy.close()
    limit = options.tolerance if options.tolerance is not None else TOLERANCE[options.dtype]
    numbers = [value for value in report.values() if isinstance(value, float)]
    report["ok"] = bool(
        all(map(math.isfinite, numbers))
        and report["logprob_max_abs_diff"] <= limit
        and report["weights_changed"]
        and report["versions_after"] == [1]
    )
    return report


Reply = tuple[Ids, np.ndarray[Any, Any], Ids]
"""Ids, log-probs and versions of one reply, shape [n] each."""


async def _sample_all(policy: TorchPolicy, prompt: Ids, rows: int, tokens: int) -> list[Reply]:
    return await asyncio.gather(*(_sample(policy, prompt, tokens, index) for index in range(rows)))


async def _sample(policy: TorchPolicy, prompt: Ids, tokens: int, seed: int) -> Reply:
    chunks: list[Chunk] = []
    async for chunk in policy.generate(prompt, Sampling(max_tokens=tokens, seed=seed), rollout_id=f"r{seed}"):
        chunks.append(chunk)
    joined = [np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("ids", "logprobs", "versions")]
    return joined[0], joined[1], joined[2]


def _row(prompt: Ids, reply: Reply, index: int) -> LossRow:
    """Half of the rows are rewarded, so that there is a gradient."""
    ids, logprobs, versions = reply
    mask = np.concatenate([np.zeros(len(prompt), bool), np.ones(len(ids), bool)])
    sample = Sample(
        rollout_id=f"r{index}",
        ids=np.concatenate([prompt, ids]).astype(np.int32),
        mask=mask,
        logprobs=np.concatenate([np.zeros(len(prompt), np.float32), logprobs]),
        versions=np.concatenate([np.full(len(prompt), -1, np.int32), versions]),
        segments=(),
    )
    return LossRow(sample=sample, advantage=1.0 if index % 2 else -1.0, token_weight=1.0 / max(1, len(ids)))


def _gaps(rows: list[LossRow], learned: list[Any]) -> np.ndarray[Any, Any]:
    """|engine's − learner's log-prob| of every sampled token."""
    pairs = [np.abs(row.sample.logprobs - new)[row.sample.mask] for row, new in zip(rows, learned, strict=True)]
    return np.concatenate(pairs)


def _planned_gib(options: argparse.Namespace, prompt: int, rows: list[LossRow]) -> float | None:
    """What the memory plan foresees for this check; None where it does not know the model."""
    try:
        config = json.loads((resolve_model(options.model) / "config.json").read_text(encoding="utf-8"))
        shape = ModelShape.from_config(config)
    except UnknownShapeError:
        return None
    engine = EngineLayout(
        shares_weights=True,
        sequences=options.rows,
        sequence_tokens=prompt + options.tokens,
        kv_dtype=options.dtype,
        workspace_gib=0.0,
        sleeps=False,
    )
    layout = Layout(
        gpus=1,
        gpu_gib=1.0,
        micro_batch_tokens=sum(len(row.sample.ids) for row in rows),
        weights=options.dtype,
        compute=options.dtype,
        checkpointing=False,
        engine=engine,
        reserved_gib=0.0,
    )
    return plan_memory(shape, layout).peak_gib


def _peak_gib(device: str) -> float:
    """Of the GPU's tensors; on a CPU of the whole process, with Python and torch themselves."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / (1 << 30)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / (1 << 30)


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="quickstart", help="quickstart, smollm2 or a model directory")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(TOLERANCE))
    parser.add_argument("--rows", type=int, default=8, help="replies sampled at one time")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of a reply")
    parser.add_argument("--tolerance", type=float, help="largest |Δ| of a log-prob, in nats")
    parser.add_argument("--json", action="store_true", help="as all benchmarks: the report is JSON in any case")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
