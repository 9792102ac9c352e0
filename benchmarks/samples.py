"""From stored calls to samples: how many prompt tokens per second on one core. Prints one JSON object.

    python benchmarks/samples.py --json

128 rollouts of 40 calls whose histories grow to 32 K tokens; 20 % of the calls belong to two sub-agents that take turns
with the main agent, and one rollout in eight meets a break that its messages do not announce. Diagnosis is included.

* `tokens_per_s`: prompt tokens of the calls / seconds from SQLite to samples: read the calls, link, diagnose, lay out.
* `baseline_tokens_per_s`: a straightforward implementation of the linear rule with Python lists, on the same calls in
  memory already.
* `memory_ratio`: most bytes that reading and building hold, calls and samples included / 4 bytes per id of the calls.
* `from_memory_tokens_per_s`, `from_memory_ratio`: the same two when the calls are in memory, each with its own ids.
* `merge`: samples that each merge rule makes of the same calls.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lightning_lab.records import Call, Ids, Message, Sampling
from lightning_lab.samples import MERGES, SampleSet, build_samples
from lightning_lab.store import Store

VOCABULARY = 150_000
REPLY_TOKENS = 200


class Agent:
    """One conversation that grows to ``final`` prompt tokens over ``turns`` calls, with about 4 characters a token."""

    def __init__(self, name: str, turns: int, final: int, rng: np.random.Generator) -> None:
        self.name = name
        self.rng = rng
        self.growth = final // turns
        self.messages: tuple[Message, ...] = (
            Message(role="system", content=f"You are {name}."),
            Message(role="user", content=self._text(self.growth)),
        )
        self.ids = self._draw(self.growth)

    def call(self, rollout: str, ordinal: int, *, altered: bool) -> Call:
        if altered:
            self.ids[len(self.ids) // 2] += 1
        reply = Message(role="assistant", content=self._text(REPLY_TOKENS))
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
        self.messages = (*self.messages, reply, Message(role="user", content=self._text(self.growth - REPLY_TOKENS)))
        self.ids = np.concatenate([self.ids, sampled, self._draw(self.growth - REPLY_TOKENS)])
        return call

    def _text(self, tokens: int) -> str:
        return self.rng.bytes(2 * tokens).hex()

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


def peak(function: Callable[[], Any]) -> int:
    """Most bytes that were allocated at any moment of the call."""
    tracemalloc.start()
    function()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def measure(rollouts: int, calls: int, final: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, Store(Path(directory) / "store.sqlite") as store:
        for number in range(rollouts):
            for call in make_rollout(number, calls, final):
                store.put_call(call)
        store.flush()
        return measure_stored(store, [f"r{number}" for number in range(rollouts)])


def measure_stored(store: Store, rollout_ids: Sequence[str]) -> dict[str, Any]:
    def build(rollout_id: str) -> SampleSet:
        return build_samples(store.calls(rollout_id), decode)

    stored = sum(seconds(lambda rollout_id=rollout_id: build(rollout_id)) for rollout_id in rollout_ids)  # type: ignore[misc]
    tokens = built = listed = listed_tokens = memory = memory_in_place = 0.0
    merged: dict[str, int] = dict.fromkeys(MERGES, 0)
    breaks = 0
    for number, rollout_id in enumerate(rollout_ids):
        made = [replace(call, prompt_ids=call.prompt_ids.copy()) for call in store.calls(rollout_id)]
        tokens += prompt_tokens(made)
        built += seconds(lambda made=made: build_samples(made, decode))  # type: ignore[misc]
        if number % 8 == 0:  # the baseline is slow, and each rollout costs it the same
            listed += seconds(lambda made=made: linear_with_lists(made))  # type: ignore[misc]
            listed_tokens += prompt_tokens(made)
            raw = 4 * sum(len(call.prompt_ids) + len(call.sampled_ids) for call in made)
            reading = peak(lambda rollout_id=rollout_id: build(rollout_id))  # type: ignore[misc]
            memory = max(memory, reading / raw)
            memory_in_place = max(memory_in_place, 1 + peak(lambda made=made: build_samples(made, decode)) / raw)  # type: ignore[misc]
            breaks += len(build_samples(made, decode).breaks)
            for rule in MERGES:
                merged[rule] += len(build_samples(made, decode, merge=rule).samples)
    speed, baseline = tokens / stored, listed_tokens / listed
    return {
        "tokens_per_s": speed,
        "baseline_tokens_per_s": baseline,
        "ratio": speed / baseline,
        "memory_ratio": memory,
        "from_memory_tokens_per_s": tokens / built,
        "from_memory_ratio": memory_in_place,
        "merge": merged,
        "breaks": breaks,
        "prompt_tokens": int(tokens),
        "rollouts": len(rollout_ids),
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
