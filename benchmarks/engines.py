"""A real vLLM server behind the gateway: what publishing costs, what the gateway costs, and whether both sides agree.

    lightning-lab engines install vllm
    python benchmarks/engines.py --json

SmolLM2-135M in float32 on this machine, the embedded learner beside it. ``publish_s``: writing the weights, the servers
taking them, until sampling goes on; ``pause_s``: the part of it in which nothing is sampled; both medians.
``throughput_ratio``: tokens per second through the gateway over those of the same requests sent to vLLM's own chat
route, eight at one time, the two taken in turns, the median of the rounds. ``logprob_max_abs_diff``: the largest |Δ| in
nats between learner and server right after the publishes, whose weights an update had changed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from lightning_lab.gateway import Gateway
from lightning_lab.policy.base import LossRow
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.vllm import VllmPolicy
from lightning_lab.records import Message, Sample, Sampling, Segment
from lightning_lab.store import Store

MODEL = "smollm2"
CONCURRENCY = 8
REPLY_TOKENS = 64
STORY = "Tell a long story about a lighthouse, its keeper and the sea. Do not stop before the morning comes."
SAMPLING = Sampling(temperature=1.0, max_tokens=REPLY_TOKENS)

Ask = Callable[[], Awaitable[int]]
"""One request → how many tokens were sampled."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON and nothing else")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    policy = VllmPolicy(MODEL, learner=DetachedTorchLearner(MODEL), context_length=2048)
    try:
        policy.start()
        figures = asyncio.run(measured(policy, options.rounds))
    finally:
        policy.close()
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<24}{value:.4g}")


async def measured(policy: VllmPolicy, rounds: int) -> dict[str, float]:
    publishes = await asyncio.to_thread(publish_often, policy, await learned_from(policy), rounds)
    with tempfile.TemporaryDirectory() as folder:
        ratios = await throughput_ratios(policy, Path(folder), rounds)
    return {
        "publish_s": statistics.median(told["publish_s"] for told in publishes),
        "pause_s": statistics.median(told["pause_s"] for told in publishes),
        "throughput_ratio": statistics.median(ratios),
        "logprob_max_abs_diff": max(told["parity_logprob_max"] for told in publishes),
    }


async def learned_from(policy: VllmPolicy) -> LossRow:
    prompt = policy.render([Message(role="user", content=STORY)], []).ids
    told = [chunk async for chunk in policy.generate(prompt, SAMPLING, rollout_id="r")]
    ids, logprobs, versions = (
        np.concatenate([getattr(chunk, name) for chunk in told]) for name in ("ids", "logprobs", "versions")
    )
    start, stop = len(prompt), len(prompt) + len(ids)
    sample = Sample(
        rollout_id="r",
        ids=np.concatenate([prompt, ids]),
        mask=np.arange(stop) >= start,
        logprobs=np.concatenate([np.zeros(start, np.float32), logprobs]),
        versions=np.concatenate([np.full(start, -1, np.int32), versions]),
        segments=(Segment(call_id="c", start=start, stop=stop),),
    )
    return LossRow(sample=sample, advantage=1.0, token_weight=1 / len(ids))


def publish_often(policy: VllmPolicy, row: LossRow, rounds: int) -> list[dict[str, float]]:
    told = []
    for _ in range(rounds):
        policy.update([[row]], loss="policy_gradient", options={}, learning_rate=1e-5)
        told.append(dict(policy.publish(policy.version + 1)))
    return told


async def throughput_ratios(policy: VllmPolicy, folder: Path, rounds: int) -> list[float]:
    store = Store(folder / "store.sqlite")
    gateway = Gateway(policy, store, sampling=SAMPLING)
    gateway.start()
    access = gateway.open_rollout("benchmark")
    socket = aiohttp.UnixConnector(str(policy.replicas[0].server.socket))  # type: ignore[union-attr]
    headers = {"Authorization": f"Bearer {access.key}"}
    try:
        async with aiohttp.ClientSession(connector=socket) as direct, aiohttp.ClientSession(headers=headers) as through:

            def direct_ask() -> Awaitable[int]:
                return ask(direct, "http://localhost/v1/chat/completions", return_token_ids=True)

            def gateway_ask() -> Awaitable[int]:
                return ask(through, f"{access.url}/v1/chat/completions")

            await tokens_per_s(direct_ask)
            await tokens_per_s(gateway_ask)
            return [await tokens_per_s(gateway_ask) / await tokens_per_s(direct_ask) for _ in range(rounds)]
    finally:
        gateway.close()
        store.close()


async def tokens_per_s(one: Ask) -> float:
    began = time.perf_counter()
    tokens = await asyncio.gather(*(one() for _ in range(CONCURRENCY)))
    return sum(tokens) / (time.perf_counter() - began)


async def ask(session: aiohttp.ClientSession, url: str, **more: Any) -> int:
    """Log-probs are asked of both, ids of vLLM: the gateway always has them."""
    body: dict[str, Any] = {
        "model": "policy",
        "messages": [{"role": "user", "content": STORY}],
        "temperature": 1.0,
        "max_tokens": REPLY_TOKENS,
        "logprobs": True,
        **more,
    }
    async with session.post(url, json=body) as response:
        answer = await response.json()
        return int(answer["usage"]["completion_tokens"])


if __name__ == "__main__":
    main()
