"""One rollout of an external controller, as it is known on both sides: here as a record, there by its wire shape."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from lightning_lab.gateway.agl.events import REWARD, reward_value
from lightning_lab.gateway.agl.wire import (
    FIRST_ATTEMPT,
    NEXT,
    Config,
    Metadata,
    NewRollout,
    State,
    Status,
    TerminalItem,
    WireEvent,
    WireRollout,
)
from lightning_lab.gateway.auth import Access
from lightning_lab.records import INFRASTRUCTURE_OUTCOMES, HarnessInfo, Outcome, Rollout, RolloutState, Sampling, Task

_LOST = ("not running", "shutdown", "disappeared", "spawn failed", "Invalid Job spec")
"""What controllers say when the agent is not to blame."""
_TIMED_OUT = ("timed out", "DeadlineExceeded")
_STATES = {Outcome.COMPLETED: RolloutState.SUCCEEDED, Outcome.CANCELLED: RolloutState.CANCELLED}
"""Of a record that has ended; every other outcome is a failure."""


@dataclass(slots=True, eq=False)
class Entry:
    """One rollout."""

    record: Rollout
    wire: WireRollout
    attempts: list[str] = field(default_factory=list)
    """In the order in which they were first heard of."""
    access: Access | None = None
    """Of the latest attempt."""
    events: list[WireEvent] = field(default_factory=list)
    """What agents posted."""
    sampling: Sampling | None = None
    must_reward: bool = False
    """Whether an agent that ends without a reward has failed in that."""
    rewards_once: bool = False
    """Whether an attempt's first reward stands; for clients of Agent Lightning the last one counts, as there."""
    future: Future[Rollout] = field(default_factory=Future)
    """Gives the terminal record, after its commit."""

    @property
    def state(self) -> State:
        return self.wire.status.state

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return bool(NEXT[self.state])

    @property
    def attempt(self) -> str:
        """The attempt that counts."""
        return self.wire.status.last_attempt_id or FIRST_ATTEMPT

    @property
    def attempt_number(self) -> int:
        """Of the attempt that counts, by `number`."""
        return self.number(self.attempt)

    def update(self, **changes: Any) -> None:
        """A new version of the status on the wire."""
        status = self.wire.status
        changed = status.model_copy(update={**changes, "version": status.version + 1, "updated_at": time.time()})
        self.wire = self.wire.model_copy(update={"status": changed})

    def number(self, attempt: str) -> int:
        """Of an attempt in the lab's records: from 1; 0 when it has not called the model."""
        return self.attempts.index(attempt) + 1 if attempt in self.attempts else 0

    def first_reward(self, attempt: str) -> WireEvent | None:
        """The first valid reward that the agent posted in an attempt."""
        posted = (one for one in self.events if one.event_type == REWARD and one.attempt_id == attempt)
        return next((one for one in posted if reward_value(one.data) is not None), None)

    def outcome(self, faults: Sequence[str]) -> Outcome:
        """Why it ended; ``faults`` are those of its model calls."""
        if self.state is State.SUCCEEDED:
            return Outcome.COMPLETED
        if faults:
            return Outcome(faults[-1])
        said = self.wire.status.error_message or ""
        if any(words in said for words in _TIMED_OUT):
            return Outcome.TIMEOUT
        return Outcome.LOST if any(words in said for words in _LOST) else Outcome.AGENT_ERROR

    def close(self, outcome: Outcome) -> Rollout:
        """The terminal record; the wire's state is terminal already."""
        reward = None if outcome in INFRASTRUCTURE_OUTCOMES else self._reward()
        if outcome is Outcome.COMPLETED and reward is None and self.must_reward:
            outcome = Outcome.GRADER_ERROR
        self.record = replace(
            self.record,
            state=_STATES.get(outcome, RolloutState.FAILED),
            outcome=outcome,
            attempt=self.attempt_number or 1,
            reward=reward,
            verdict="" if reward is not None else "The agent posted no reward before it ended.",
            error=self.wire.status.error_message or "",
            finished_at=self.wire.status.updated_at,
        )
        return self.record

    def _reward(self) -> float | None:
        """The last one that the agent posted in the attempt that counts."""
        posted = [one for one in self.events if one.event_type == REWARD and one.attempt_id == self.attempt]
        return reward_value(posted[-1].data) if posted else None


def made_there(asked: NewRollout, rollout_id: str, run_id: str) -> Entry:
    """A rollout that a client made. Equal inputs are one task, and its rollouts are one group."""
    now, config = time.time(), asked.config or Config()
    content = orjson.dumps(asked.input, option=orjson.OPT_SORT_KEYS)
    task_id = _data_id(asked.input) or f"agl-{hashlib.sha256(content).hexdigest()[:16]}"
    fields = asked.input if isinstance(asked.input, dict) else {"input": asked.input}
    name = (config.local and config.local.agent_class) or "external agent"
    record = Rollout(
        id=rollout_id,
        run_id=run_id,
        group_id=f"g-{task_id}",
        task=Task(id=task_id, prompt=_prompt(asked.input), source="agl_compat", fields=fields),
        harness=HarnessInfo(name=name, version="", kind="external"),
        mode="train" if asked.is_train else "eval",
        state=RolloutState.QUEUING,
        created_at=now,
    )
    wire = WireRollout(
        rollout_id=rollout_id,
        input=asked.input,
        is_train=asked.is_train,
        config=config,
        metadata=asked.metadata or Metadata(),
        status=Status(created_at=now, updated_at=now),
    )
    return Entry(record, wire)


def made_here(record: Rollout, config: Config, *, sampling: Sampling | None, must_reward: bool) -> Entry:
    """A rollout of the lab's own. Its agent rewards itself, so it gets the answer too."""
    task, now = record.task, time.time()
    wire = WireRollout(
        rollout_id=record.id,
        input={**task.fields, "data_id": task.id, "prompt": task.prompt, "answer": task.answer},
        is_train=record.mode == "train",
        config=config,
        metadata=Metadata(),
        status=Status(created_at=now, updated_at=now),
    )
    return Entry(record, wire, sampling=sampling, must_reward=must_reward, rewards_once=True)


def terminal_item(wire: WireRollout) -> TerminalItem:
    """A rollout that has ended, in short."""
    return TerminalItem(
        rollout_id=wire.rollout_id, state=wire.status.state, data_id=_data_id(wire.input), is_train=wire.is_train
    )


def _prompt(given: Any) -> str:
    """What people read as the task; inputs have no fixed shape."""
    if isinstance(given, dict):
        given = next((given[name] for name in ("prompt", "question", "problem", "task") if name in given), given)
    return given if isinstance(given, str) else orjson.dumps(given).decode()


def _data_id(given: Any) -> str:
    return str(given.get("data_id") or given.get("instance_id") or "") if isinstance(given, dict) else ""
