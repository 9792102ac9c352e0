"""One learner step and one plan on this machine. Prints one JSON object.

    python benchmarks/update.py --json

64 samples with log-normal lengths (median 200, p99 4,000 tokens), a tiny model on one thread of the CPU, the same
token budget for all ways of putting rows together; each micro-batch is one forward and backward pass.

* `speedup`: seconds of length-bucketed padding (a bucket per power of two) / seconds of the learner's packing.
* `padded_speedup`: seconds of padding every row to the longest (a straw man) / seconds of packing.
* `fused_speedup`: the same as `speedup` with both cut into the learner's cache-sized parts.
* `grad_rel_error`: largest relative difference of the gradient to that of one row at a time, over all ways.
* `padding_share`: tokens that the learner reads and that belong to no sample / tokens that it reads.
* `bucketed_padding_share`: the same for length-bucketed padding.
* `planner_ms`, `imbalance`: 4,096 samples (clipped at 8,192 tokens) on 64 ranks, budget 16,384, cost 24576·L + L².
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lightning_lab.algorithms.losses import policy_gradient
from lightning_lab.planning import plan
from lightning_lab.policy.base import LossRow
from lightning_lab.policy.torch.batch import Cluster, SharedPrefix, make_batch, parts, token_logprobs, trained_logits
from lightning_lab.policy.torch.learner import CPU_TOKENS
from lightning_lab.policy.torch.llama import LlamaForward
from lightning_lab.policy.torch.model import load_model
from lightning_lab.policy.torch.packing import pack, packed_logits, packs
from lightning_lab.records import Sample

VOCABULARY, LONGEST = 512, 8192
SIGMA = np.log(4000 / 200) / 2.326  # p99 over the median of a log-normal
Rows = Sequence[LossRow]


def lengths(count: int, seed: int) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(np.log(200), SIGMA, count)
    return np.clip(drawn.astype(int), 16, LONGEST).tolist()


def make_rows(count: int) -> list[LossRow]:
    rng = np.random.default_rng(1)
    rows = []
    for number, length in enumerate(lengths(count, 0)):
        mask = np.arange(length) >= length // 3
        sample = Sample(
            rollout_id=f"r{number}",
            ids=rng.integers(0, VOCABULARY, length).astype(np.int32),
            mask=mask,
            logprobs=np.where(mask, -6.0, 0.0).astype(np.float32),
            versions=np.zeros(length, np.int32),
            segments=(),
        )
        advantage = (-1.0) ** number
        rows.append(LossRow(sample=sample, advantage=advantage, token_weight=1.0 / (count * int(mask.sum()))))
    return rows


def make_model(directory: Path) -> PreTrainedModel:
    """2 layers of width 64, 2 heads that share keys; 0.1 M parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return load_model(directory, device="cpu", dtype=torch.float32)


def add_gradient(forward: LlamaForward, rows: Rows, packed: bool) -> None:
    device, alone = torch.device("cpu"), SharedPrefix()
    if packed:
        batch, segments = pack(rows, 0, device)
        logits = packed_logits(forward, alone, batch, segments)
    else:
        batch = make_batch(rows, 0, device)
        logits = trained_logits(forward, alone, batch, torch.float32)
    logprobs, _ = token_logprobs(logits, batch.targets, entropy_gradient=False)
    policy_gradient(logprobs, batch.old_logprobs, batch.advantages, batch.weights)[0].backward()


def step(model: PreTrainedModel, forward: LlamaForward, groups: Sequence[Rows], packed: bool) -> tuple[float, Tensor]:
    """(seconds of this thread, gradient)."""
    model.zero_grad()
    began = time.thread_time()
    for rows in groups:
        add_gradient(forward, rows, packed)
    took = time.thread_time() - began
    return took, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def buckets(rows: Rows, budget: int) -> list[Rows]:
    """Rows whose lengths lie between the same powers of two, padded to the longest of them, within the budget."""
    by_size: dict[int, list[LossRow]] = {}
    for row in rows:
        by_size.setdefault(len(row.sample.ids).bit_length(), []).append(row)
    return [part for size in sorted(by_size) for part in parts(Cluster(by_size[size], 0), budget)]


def padded_seconds(model: PreTrainedModel, forward: LlamaForward, rows: Rows) -> float:
    """Every row padded to the longest, one at a time: timed on the longest row, for it costs the same as all others."""
    longest = max(rows, key=lambda row: len(row.sample.ids))
    return step(model, forward, [[longest]], False)[0] * len(rows)


def padding_share(groups: Sequence[Rows], packed: bool) -> float:
    """Counts what goes through the model: ids of the batches against ids of the samples up to the last trained one."""
    device = torch.device("cpu")
    read = sum((pack(rows, 0, device)[0] if packed else make_batch(rows, 0, device)).ids.numel() for rows in groups)
    real = sum(len(row.sample.ids) - 1 for rows in groups for row in rows)
    return 1.0 - real / read


def measure_learner(count: int, budget: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows = make_rows(count)
    cluster = Cluster(rows, 0)
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(Path(directory))
    forward = LlamaForward(model, LONGEST)
    ways: dict[str, tuple[Sequence[Rows], bool]] = {
        "packed": (packs(cluster, budget), True),
        "bucketed": (buckets(rows, budget), False),
        "packed_parts": (packs(cluster, CPU_TOKENS), True),
        "bucketed_parts": (parts(cluster, CPU_TOKENS), False),
    }
    _, expected = step(model, forward, [[row] for row in rows], False)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    errors: dict[str, float] = {}
    for _ in range(repeats):
        for name, (groups, packed) in ways.items():
            took, gradient = step(model, forward, groups, packed)
            errors[name] = float((gradient - expected).norm() / expected.norm())
            seconds[name].append(took)
    median = {name: statistics.median(found) for name, found in seconds.items()}
    median["padded"] = padded_seconds(model, forward, rows)
    return {
        "speedup": median["bucketed"] / median["packed"],
        "padded_speedup": median["padded"] / median["packed"],
        "fused_speedup": median["bucketed_parts"] / median["packed_parts"],
        "grad_rel_error": max(errors.values()),
        "padding_share": padding_share(ways["packed"][0], True),
        "bucketed_padding_share": padding_share(ways["bucketed"][0], False),
        "seconds": median,
        "tokens": sum(len(row.sample.ids) for row in rows),
        "budget": budget,
    }


def best_of(repeats: int, function: Callable[[], Any]) -> tuple[float, Any]:
    times, result = [], None
    for _ in range(repeats):
        began = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - began)
    return min(times), result


def measure_planner() -> dict[str, float]:
    drawn = lengths(4096, 2)
    took, made = best_of(5, lambda: plan(drawn, 16_384, 64))
    return {"planner_ms": took * 1000, "imbalance": made.imbalance, "micro_batches": len(made.micro_batches) // 64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout (always the case)")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--budget", type=int, default=16_384, help="tokens of one micro-batch")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print(json.dumps(measure_learner(arguments.samples, arguments.budget, arguments.repeats) | measure_planner()))


if __name__ == "__main__":
    main()
