"""From stored calls to samples: how many prompt tokens per second on one core. Prints one JSON object.

    python benchmarks/samples.py --json

128 rollouts of 40 calls whose histories grow to 32 K tokens; 20 % of the calls belong to two sub-agents that take turns
with the main agent, and one rollout in eight meets a break that its messages do not announce. Diagnosis is included.

* `tokens_per_s`: prompt tokens of the calls / seconds of `build_samples`.
* `baseline_tokens_per_s`: a straightforward implementation of the linear rule with Python lists, on the same calls.
* `memory_ratio`: (ids of the calls + peak of what building allocates, samples included) / ids of the calls.
* `with_store_tokens_per_s`: the same as the first with reading the calls back from the store (fewer rollouts).
* `merge`: samples that each merge rule makes of the same calls.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightning_lab.records import Call, Ids, Message, Sampling
from lightning_lab.samples import MERGES, build_samples
from lightning_lab.store import Store

VOCABULARY = 150_000
REPLY_TOKENS = 200


class Agent:
    """One conversation that grows to ``final`` prompt tokens over ``turns`` calls."""

    def __init__(self, name: str, turns: int, final: int, rng: np.random.Generator) -> None:
        self.name = name
        self.rng = rng
        self.growth = final // turns
        self.messages: tuple[Message, ...] = (
            Message(role="system", content=f"You are {name}."),
            Message(role="user", content=f"The task of {name}"),
        )
        self.ids = self._draw(self.growth)

    def call(self, rollout: str, ordinal: int, *, altered: bool) -> Call:
        if altered:
            self.ids[len(self.ids) // 2] += 1
        reply = Message(role="assistant", content=f"{self.name} says {ordinal}")
        sampled = self._draw(REPLY_TOKENS)
        call = Call(
            id=f"c-{rollout}-{ordinal}",
            rollout_id=rollout,
            attempt=1,
            ordinal=ordinal,
            request_id=f"q-{ordinal}",
            protocol="chat",
            model="any",
            messages=self.messages,
            tools=(),
            reply=reply,
            prompt_ids=self.ids.copy(),
            sampled_ids=sampled,
            logprobs=np.full(REPLY_TOKENS, -1.0, np.float32),
            versions=np.zeros(REPLY_TOKENS, np.int32),
            finish_reason="stop",
            asked={},
            used=Sampling(),
            arrived_at=float(ordinal),
            held_s=0.0,
            started_at=float(ordinal),
            finished_at=ordinal + 0.5,
            delivered=True,
            thread=self.name,
        )
        self.messages = (*self.messages, reply, Message(role="user", content=f"Observation {ordinal}"))
        self.ids = np.concatenate([self.ids, sampled, self._draw(self.growth - REPLY_TOKENS)])
        return call

    def _draw(self, count: int) -> Ids:
        return self.rng.integers(0, VOCABULARY, count).astype(np.int32)


def make_rollout(number: int, calls: int, final: int) -> list[Call]:
    rng = np.random.default_rng(number)
    helpers = [Agent(f"helper {i}", calls // 10, final // 4, rng) for i in range(2)]
    main = Agent("main", calls - 2 * (calls // 10), final, rng)
    made = []
    for ordinal in range(calls):
        agent = helpers[(ordinal // 5) % 2] if ordinal % 5 == 4 else main
        made.append(agent.call(f"r{number}", ordinal, altered=number % 8 == 0 and ordinal == calls // 2))
    return made


def linear_with_lists(calls: Sequence[Call]) -> list[tuple[list[int], list[int], list[float]]]:
    """What a trainer's first version looks like: one open sample, compared and extended as lists."""
    samples: list[tuple[list[int], list[int], list[float]]] = []
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for call in calls:
        prompt = call.prompt_ids.tolist()
        if ids and prompt[: len(ids)] == ids:
            context = prompt[len(ids) :]
        else:
            if ids:
                samples.append((ids, mask, logprobs))
            ids, mask, logprobs = [], [], []
            context = prompt
        sampled = call.sampled_ids.tolist()
        ids = ids + context + sampled
        mask = mask + [0] * len(context) + [1] * len(sampled)
        logprobs = logprobs + [0.0] * len(context) + call.logprobs.tolist()
    return [*samples, (ids, mask, logprobs)]


def decode(ids: Ids) -> str:
    return " ".join(map(str, ids.tolist()))


def prompt_tokens(calls: Sequence[Call]) -> int:
    return sum(len(call.prompt_ids) for call in calls)


def seconds(function: Callable[[], Any]) -> float:
    """Of this process on one core, whatever else the machine does."""
    began = time.process_time()
    function()
    return time.process_time() - began


def from_store(rollouts: Iterator[list[Call]]) -> float:
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory) / "store.sqlite")
        tokens = 0
        ids = []
        for calls in rollouts:
            tokens += prompt_tokens(calls)
            ids.append(calls[0].rollout_id)
            for call in calls:
                store.put_call(call)
        store.flush()
        took = seconds(lambda: [build_samples(store.calls(rollout_id), decode) for rollout_id in ids])
        store.close()
    return tokens / took


def measure(rollouts: int, calls: int, final: int) -> dict[str, Any]:
    tokens = built = listed = listed_tokens = peak = 0.0
    merged: dict[str, int] = dict.fromkeys(MERGES, 0)
    breaks = 0
    for number in range(rollouts):
        made = make_rollout(number, calls, final)
        here = prompt_tokens(made)
        tokens += here
        built += seconds(lambda made=made: build_samples(made, decode))  # type: ignore[misc]
        if number % 8 == 0:  # the baseline is slow, and each rollout costs it the same
            listed += seconds(lambda made=made: linear_with_lists(made))  # type: ignore[misc]
            listed_tokens += here
            raw = 4 * (here + sum(len(call.sampled_ids) for call in made))
            tracemalloc.start()
            breaks += len(build_samples(made, decode).breaks)
            peak = max(peak, (raw + tracemalloc.get_traced_memory()[1]) / raw)
            tracemalloc.stop()
            for rule in MERGES:
                merged[rule] += len(build_samples(made, decode, merge=rule).samples)
    speed, baseline = tokens / built, listed_tokens / listed
    return {
        "tokens_per_s": speed,
        "baseline_tokens_per_s": baseline,
        "ratio": speed / baseline,
        "memory_ratio": peak,
        "with_store_tokens_per_s": from_store(make_rollout(number, calls, final) for number in range(min(rollouts, 8))),
        "merge": merged,
        "breaks": breaks,
        "prompt_tokens": int(tokens),
        "rollouts": rollouts,
        "calls": calls,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (the default)")
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=32_768, help="prompt tokens of the last call")
    options = parser.parse_args()
    print(json.dumps(measure(options.rollouts, options.calls, options.tokens)))


if __name__ == "__main__":
    main()
