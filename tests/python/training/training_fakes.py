"""A lab without processes: a bandit that really learns, agents that are threads, and the real store."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_lab.algorithms.losses import LOSSES
from lightning_lab.algorithms.metrics import rollout_weights
from lightning_lab.controller.retries import NEVER, Retries
from lightning_lab.harnesses import Harness, harness
from lightning_lab.policy.base import LossRow, TokenStats, UpdateResult
from lightning_lab.records import Call, Ids, Message, Outcome, Rollout, RolloutState, Sampling, Task
from lightning_lab.store import RunFolder, Store
from lightning_lab.tasks import Grader, grader

VOCABULARY = 4


@harness
def agent(task: Task) -> str:
    return task.prompt


@grader
def right_token(task: Task, result: Any) -> float:
    return float(result.output == task.answer)


def make_tasks(count: int) -> list[Task]:
    """The right answer is token 2, whatever the task."""
    return [Task(id=f"t{i}", prompt=f"task {i}", answer="2") for i in range(count)]


class Bandit:
    """Samples one token from a softmax over four logits; learns them with the real losses. A Policy and Learner."""

    name = "bandit"
    can_learn = True
    context_length = 64

    def __init__(self, seed: int = 0) -> None:
        self.version = 0
        self.logits = torch.zeros(VOCABULARY, dtype=torch.float64, requires_grad=True)
        self.updates: list[Sequence[Sequence[LossRow]]] = []
        self.options: dict[str, Any] = {}
        self.extra_metrics: dict[str, float] = {}
        self.update_error: Exception | None = None
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()

    def sample(self) -> tuple[int, float]:
        with self._lock:
            logprobs = torch.log_softmax(self.logits.detach(), -1).numpy()
            token = int(self._rng.choice(VOCABULARY, p=np.exp(logprobs)))
            return token, float(logprobs[token])

    def decode(self, ids: Ids) -> str:
        return " ".join(str(int(i)) for i in ids)

    def update(
        self, micro_batches: Sequence[Sequence[LossRow]], *, loss: str, options: Mapping[str, Any], learning_rate: float
    ) -> UpdateResult:
        self.updates.append(micro_batches)
        if self.update_error is not None:
            raise self.update_error
        self.options = dict(options)
        clips = {name: value for name, value in options.items() if name.startswith("clip_")}
        self.logits.grad = None
        total, stats = 0.0, []
        owners: list[str] = []
        told: list[float] = []
        for row in (row for rows in micro_batches for row in rows):
            logprobs = torch.log_softmax(self.logits, -1)[torch.tensor(row.sample.ids).long() % VOCABULARY]
            weights = row.token_weight * torch.tensor(row.sample.mask).double()
            owners += [row.sample.rollout_id] * len(weights)
            told += weights.tolist()
            advantages = torch.full_like(weights, row.advantage)
            value, tokens = LOSSES[loss](
                logprobs, torch.tensor(row.sample.logprobs).double(), advantages, weights, **clips
            )
            value.backward()
            total += value.item()
            shown = [
                t.detach().numpy().astype(np.float32)
                for t in (logprobs, tokens["ratio"], tokens["clipped"], tokens["loss"])
            ]
            stats.append(
                TokenStats(entropy=shown[0], logprobs=shown[0], ratio=shown[1], clipped=shown[2], loss=shown[3])
            )
        with torch.no_grad():
            self.logits -= learning_rate * self.logits.grad
        names = ("entropy", "approx_kl", "clip_frac", "ratio_mean", "grad_norm")
        metrics = {"loss": total, **dict.fromkeys(names, 0.0), **self.extra_metrics}
        return UpdateResult(metrics=metrics, tokens=stats, rollout_weights=rollout_weights(owners, np.array(told)))

    def publish(self, version: int) -> Mapping[str, float]:
        assert version > self.version
        self.version = version
        return {}

    def save(self, directory: Path) -> None:
        (directory / "logits.json").write_text(json.dumps(self.logits.tolist()))

    def load(self, directory: Path) -> None:
        with torch.no_grad():
            self.logits.copy_(torch.tensor(json.loads((directory / "logits.json").read_text()), dtype=torch.float64))


@dataclass
class Report:
    aborted: int = 0


class Gate:
    """Stands for the gateway: while paused, no agent gets an answer."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.modes: list[str] = []
        self.open = threading.Event()
        self.open.set()

    def pause(self, *, deadline_s: float = 60.0, mode: str = "wait") -> Report:
        self.log.append("pause")
        self.modes.append(mode)
        self.open.clear()
        return Report()

    def resume(self) -> None:
        self.log.append("resume")
        self.open.set()


Ending = Callable[[Rollout], Mapping[str, Any] | None]


@dataclass
class Agents:
    """Stands for the controller: each rollout is one call to the bandit, unless ``ending`` says how it ends."""

    store: Store
    policy: Bandit
    gate: Gate
    ending: Ending = lambda rollout: None
    alter: Callable[[Call], Call] = lambda call: call
    """What becomes of a call before it is stored."""
    hold: threading.Event | None = None
    """When given, rollouts wait for it (or for being cancelled) before they end."""
    submitted: list[Rollout] = field(default_factory=list)
    samplings: list[Sampling | None] = field(default_factory=list)
    retries: list[Retries] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(4)

    def submit(
        self,
        rollout: Rollout,
        harness: Harness,
        grader: Grader,
        *,
        sampling: Sampling | None = None,
        retries: Retries = NEVER,
    ) -> Future[Rollout]:
        self.retries.append(retries)
        self.submitted.append(rollout)
        self.samplings.append(sampling)
        self.store.put_rollout(rollout)
        return self._pool.submit(self._run, rollout, grader)

    def cancel(self, rollout_id: str) -> None:
        self.cancelled.add(rollout_id)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, rollout: Rollout, grader: Grader) -> Rollout:
        while self.hold is not None and not self.hold.is_set():
            if rollout.id in self.cancelled:
                return self._end(rollout, state=RolloutState.CANCELLED, outcome=Outcome.CANCELLED)
            time.sleep(0.002)
        ending = self.ending(rollout)
        if ending is not None:
            return self._end(rollout, **ending)
        token = self._call(rollout)
        reward = float(str(token) == rollout.task.answer)
        return self._end(rollout, state=RolloutState.SUCCEEDED, outcome=Outcome.COMPLETED, reward=reward)

    def _call(self, rollout: Rollout) -> int:
        self.gate.open.wait()
        now = time.time()
        token, logprob = self.policy.sample()
        call = Call(
            id=f"c-{rollout.id}",
            rollout_id=rollout.id,
            attempt=1,
            ordinal=0,
            request_id=rollout.id,
            protocol="chat",
            model="any",
            messages=(Message(role="user", content=rollout.task.prompt),),
            tools=(),
            reply=Message(role="assistant", content=str(token)),
            prompt_ids=np.array([1, 3], np.int32),
            sampled_ids=np.array([token], np.int32),
            logprobs=np.array([logprob], np.float32),
            versions=np.array([self.policy.version], np.int32),
            finish_reason="stop",
            asked={},
            used=Sampling(),
            arrived_at=now,
            held_s=0.0,
            started_at=now,
            finished_at=time.time(),
            delivered=False,
        )
        self.store.put_call(self.alter(call)).result()
        self.store.mark_delivered(call.id)
        return token

    def _end(self, rollout: Rollout, **changes: Any) -> Rollout:
        ended = replace(rollout, finished_at=time.time(), **changes)
        finite = ended.reward is not None and math.isfinite(ended.reward)
        self.store.put_rollout(replace(ended, reward=ended.reward if finite else None)).result()
        return ended


@dataclass
class FakeLab:
    """Satisfies LabParts."""

    policy: Bandit
    store: Store
    gateway: Gate
    controller: Agents
    folder: RunFolder
