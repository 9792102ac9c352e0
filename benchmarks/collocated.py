"""What the collocated schedule gains over the synchronous one. Prints one JSON object.

    python benchmarks/collocated.py --json

Real gateway, store, controller and agent processes; the model is a clock: a call takes ``MODEL_S`` and an update takes
30 % of the mean synchronous step, measured first. Agents ask, use a tool, and ask again. The tool's latency is Pareto
distributed with alpha = 1.5, truncated at 20 times its median (``speedup_no_tail``: always the mean). Every run has the
same tasks, whose groups have the same latencies (``--seed``), the same number of groups and of updates, and ends when
every group was consumed.

* ``speedup``: synchronous seconds over collocated seconds, ``B_async`` = 2 ``B_train``; ``speedup_same_batch``: with
  ``B_async`` = ``B_train``; ``speedup_no_tail``: the first without a tail.
* ``bound_speedup``: the same with the least time that the work needs: the larger of the updates' seconds, and the
  rollouts' seconds (of the synchronous run, where no call is held) divided by the rollouts that may run. Nothing waits
  in it, and processes cost nothing. ``over_bound``: how much longer the collocated run took, as a share.
* ``interrupt_pause_s``, ``wait_pause_s``: how long the gateway's pause takes with 64 calls of 3 s in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.policy.base import Chunk, LossRow, Rendered, UpdateResult
from lightning_lab.records import Ids, Message, Sampling, Task

N, GROUPS = 8, 4
MODEL_S = 0.03
MEDIAN_S = 1.0
"""Of the tool. Much shorter ones measure what this machine takes to start and end a process, not the schedule."""
ALPHA = 1.5
UPDATE_SHARE = 0.3
LONG_CALL_S = 3.0


class Clock:
    """A policy whose calls and updates only take time."""

    name = "clock"
    can_learn = True
    context_length = 100_000

    def __init__(self, call_s: float = MODEL_S) -> None:
        self.version = 0
        self.call_s = call_s
        self.update_s = 0.0

    def start(self) -> None: ...
    def close(self) -> None: ...

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        text = "".join(f"<{message.role}>{message.content}" for message in messages)
        return Rendered(ids=np.frombuffer(text.encode(), np.uint8).astype(np.int32))

    async def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        for token in (1, 2, 3):
            await asyncio.sleep(self.call_s / 3)
            yield Chunk(
                ids=np.array([token], np.int32),
                logprobs=np.array([-0.5], np.float32),
                versions=np.array([self.version], np.int32),
                finish_reason="stop" if token == 3 else None,
            )

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        return Message(role="assistant", content="go on")

    def decode(self, ids: Ids) -> str:
        return " ".join(map(str, ids.tolist()))

    def fingerprint(self) -> Mapping[str, str]:
        return {"model": self.name}

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        time.sleep(self.update_s)
        return UpdateResult(metrics={})

    def publish(self, version: int) -> Mapping[str, float]:
        self.version = version
        return {}

    def save(self, directory: Path) -> None: ...
    def load(self, directory: Path) -> None: ...


def ask() -> None:
    body = {"model": "any", "messages": [{"role": "user", "content": "next?"}]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        response.read()


@ll.harness
def tool_user(task: Task) -> str:
    ask()
    time.sleep(task.fields["latencies"][claim(Path(task.fields["claims"]))])
    ask()
    return str(random.SystemRandom().randrange(2))


def claim(folder: Path) -> int:
    """Which of its group a rollout is: the first number that no other has taken. Nobody tells it to an agent."""
    number = 0
    while True:
        try:
            (folder / str(number)).mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return number


@ll.grader
def coin(task: Task, result: Any) -> float:
    return float(result.output)


def pareto() -> dict[str, float]:
    """Scale and truncation for the median, and the truncated distribution's mean."""
    scale, longest = MEDIAN_S / 2 ** (1 / ALPHA), 20 * MEDIAN_S
    tail = (scale / longest) ** ALPHA
    body = ALPHA * scale**ALPHA / (ALPHA - 1) * (scale ** (1 - ALPHA) - longest ** (1 - ALPHA))
    return {"scale": scale, "longest": longest, "mean": body + longest * tail}


def make_tasks(tail: bool, seed: int, claims: Path) -> Any:
    """One latency for each rollout of a task's group; without a tail all of them are the mean."""
    latency, dice = pareto(), random.Random(seed)
    rows = []
    for i in range(1000):
        drawn = [min(latency["scale"] * dice.paretovariate(ALPHA), latency["longest"]) for _ in range(N)]
        latencies = drawn if tail else [latency["mean"]] * N
        rows.append({"prompt": f"task {i}", "answer": "", "latencies": latencies, "claims": str(claims / str(i))})
    return ll.tasks.from_rows(rows)


@dataclass(frozen=True)
class Measured:
    """One run."""

    seconds: float
    step_s: float
    """Mean seconds from the start of a step to its end."""
    rollout_s: float
    """Seconds that rollouts ran, all together."""
    collect_s: float
    """Mean seconds in which an update waited for groups."""


async def train(
    schedule: str, steps: int, *, seed: int, update_s: float, async_groups: int = 2 * GROUPS, tail: bool = True
) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        tasks = make_tasks(tail, seed, Path(folder) / "claims")
        policy = Clock()
        policy.update_s = update_s
        lab = Lab(policy, runs=folder, concurrency=async_groups * N)
        try:
            await lab.run(tool_user, tasks[999], grader=coin)  # the fork server is up
            trainer = ll.Trainer(
                lab, tool_user, tasks, coin, n=N, groups=GROUPS, schedule=schedule,
                async_groups=async_groups, pause="interrupt", seed=seed,
            )  # fmt: skip
            began = time.perf_counter()
            run = trainer.fit(steps=steps)
            await run
            seconds = time.perf_counter() - began
            made = lab.store.steps(run.id)
            assert len(made) == steps
            rollouts = lab.store.rollouts(run.id)
            assert len(rollouts) == steps * GROUPS * N and all(rollout.step is not None for rollout in rollouts)
            busy = sum((r.finished_at or 0.0) - (r.started_at or 0.0) for r in rollouts)
            collect_s = sum(step.metrics["seconds_collect"] for step in made) / steps
            return Measured(seconds, sum(s.finished_at - s.started_at for s in made) / steps, busy, collect_s)
        finally:
            lab.close()


async def pause_seconds(mode: str, calls: int = 64) -> float:
    """How long a pause takes while so many calls, begun at one time, are in flight."""
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Clock(LONG_CALL_S), runs=folder)
        try:
            gateway = lab._parts.gateway
            access = gateway.open_rollout("r-pause")
            async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=calls)) as client:
                body = {"model": "any", "messages": [{"role": "user", "content": "long"}]}
                headers = {"authorization": f"Bearer {access.key}"}
                url = f"{access.url}/v1/chat/completions"
                asked = [asyncio.create_task(client.post(url, json=body, headers=headers)) for _ in range(calls)]
                while gateway.admission.in_flight < calls:  # noqa: ASYNC110 - another thread's state
                    await asyncio.sleep(0.01)
                began = time.perf_counter()
                await asyncio.to_thread(gateway.pause, mode=mode)
                seconds = time.perf_counter() - began
                gateway.resume()
                assert all(answer.status_code == 200 for answer in await asyncio.gather(*asked))
            return seconds
        finally:
            lab.close()


async def measure(steps: int, seed: int) -> dict[str, float]:
    probe = await train("sync", max(5, steps // 4), seed=seed, update_s=0.0)
    update_s = probe.step_s * UPDATE_SHARE / (1 - UPDATE_SHARE)
    sync = await train("sync", steps, seed=seed, update_s=update_s)
    double = await train("collocated", steps, seed=seed, update_s=update_s)
    same = await train("collocated", steps, seed=seed, update_s=update_s, async_groups=GROUPS)
    flat_sync = await train("sync", steps, seed=seed, update_s=update_s, tail=False)
    flat = await train("collocated", steps, seed=seed, update_s=update_s, tail=False)
    bound_s = max(steps * update_s, sync.rollout_s / (2 * GROUPS * N))
    return {
        "speedup": sync.seconds / double.seconds,
        "speedup_same_batch": sync.seconds / same.seconds,
        "speedup_no_tail": flat_sync.seconds / flat.seconds,
        "bound_speedup": sync.seconds / bound_s,
        "over_bound": double.seconds / bound_s - 1,
        "interrupt_pause_s": await pause_seconds("interrupt"),
        "wait_pause_s": await pause_seconds("wait"),
        "update_s": update_s,
        "sync_s": sync.seconds,
        "collocated_s": double.seconds,
        "collect_s": double.collect_s,
        "updates": steps,
        "seed": seed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The collocated schedule against the synchronous one.")
    parser.add_argument("--json", action="store_true", help="print one JSON object (the only format)")
    parser.add_argument("--steps", type=int, default=40, help="updates of every run")
    parser.add_argument("--seed", type=int, default=0, help="of the latencies and of the order of tasks")
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure(arguments.steps, arguments.seed))))


if __name__ == "__main__":
    main()
