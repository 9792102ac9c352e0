"""The rollouts of external controllers: made over REST, run elsewhere, recorded here like all others."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson
from ulid import ULID

from lightning_lab.gateway.agl.events import REWARD, call_event, reward_value
from lightning_lab.gateway.agl.wire import (
    FIRST_ATTEMPT,
    NEXT,
    Config,
    Metadata,
    NewEvent,
    NewRollout,
    State,
    Status,
    StatusPatch,
    TerminalItem,
    TerminalPage,
    WireEvent,
    WireRollout,
)
from lightning_lab.gateway.auth import Access
from lightning_lab.records import INFRASTRUCTURE_OUTCOMES, HarnessInfo, Outcome, Rollout, RolloutState, Run, Task
from lightning_lab.store import Store
from lightning_lab.store.errors import UnknownIdError

_LOST = ("not running", "shutdown", "disappeared", "spawn failed", "Invalid Job spec")
"""What controllers say when the agent is not to blame."""


_RECORDED = {Outcome.CANCELLED: RolloutState.CANCELLED}
"""Where the record's state is not the one of the wire."""


class RefusedRequestError(Exception):
    """What a client asked cannot be done; ``status`` is the HTTP status that says so."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Credentials(Protocol):
    """What these rollouts need of the gateway."""

    @property
    def url(self) -> str: ...
    def open_rollout(self, rollout_id: str, *, attempt: int = 1) -> Access: ...
    def close_rollout(self, rollout_id: str) -> None: ...
    def faults(self, rollout_id: str) -> list[str]: ...


@dataclass(slots=True, eq=False)
class Entry:
    """One rollout, as it is known on both sides."""

    record: Rollout
    wire: WireRollout
    attempts: list[str] = field(default_factory=list)
    """In the order in which they were first heard of; the place of an attempt is its number, from 1."""
    access: Access | None = None
    """Of the latest attempt."""
    events: list[WireEvent] = field(default_factory=list)
    """What agents posted."""

    @property
    def state(self) -> State:
        return self.wire.status.state

    @property
    def attempt(self) -> str:
        """The attempt that counts."""
        return self.wire.status.last_attempt_id or FIRST_ATTEMPT


class AglRollouts:
    """All of them, in the order of their making. Their run is tagged ``agl_compat``. Thread-safe."""

    def __init__(self, store: Store, gateway: Credentials, *, model: str) -> None:
        self.model = model
        self._store = store
        self._gateway = gateway
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._ended: list[str] = []
        settings = {"agl_compat": True, "policy": model}
        self.run = Run(id=str(ULID()), kind="single", state="", settings=settings, created_at=time.time())

    @property
    def open(self) -> int:
        """How many have not ended."""
        return sum(bool(NEXT[entry.state]) for entry in list(self._entries.values()))

    def start(self) -> None:
        """Begin the run that holds them."""
        self._put_run("running")

    def close(self) -> None:
        """End what is still open as cancelled. Idempotent."""
        for entry in list(self._entries.values()):
            if NEXT[entry.state]:
                _update(entry, state=State.FAILED, error_message="The lab stopped serving external controllers.")
                self._gateway.close_rollout(entry.record.id)
                self._end(entry, Outcome.CANCELLED)
        if self.run.state == "running":
            self._put_run("finished", finished_at=time.time())

    async def create(self, asked: Sequence[NewRollout]) -> list[WireRollout]:
        """Queue them; one whose id is known already is left as it is. Returns when they are committed."""
        for one in asked:
            _check_storable(one.model_dump())
        made = [self._create(one) for one in asked]
        for written in [self._store.put_rollout(entry.record) for entry, new in made if new]:
            await asyncio.wrap_future(written)
        return [entry.wire for entry, _ in made]

    def listed(self, states: set[State], limit: int) -> list[WireRollout]:
        """Those in one of the states, first come first."""
        entries = list(self._entries.values())
        return [entry.wire for entry in entries if entry.state in states][: max(0, limit)]

    def ended(self, after: int, limit: int) -> TerminalPage:
        """Those that have ended, in that order, from place ``after`` on."""
        after, limit = max(0, after), max(1, limit)
        ids = self._ended[after : after + limit]
        items = [
            TerminalItem(
                rollout_id=one, state=entry.state, data_id=_data_id(entry.wire.input), is_train=entry.wire.is_train
            )
            for one in ids
            if (entry := self._entries.get(one)) is not None
        ]
        return TerminalPage(items=items, next_after=after + len(ids), total_terminal=len(self._ended))

    def entry(self, rollout_id: str) -> Entry:
        """Raises `RefusedRequestError` 404."""
        entry = self._entries.get(rollout_id)
        if entry is None:
            raise RefusedRequestError(404, f"Rollout not found: {rollout_id}")
        return entry

    async def patch(self, rollout_id: str, patch: StatusPatch) -> WireRollout:
        """What a controller reports. Raises `RefusedRequestError` 404, and 409 for a step that no rollout makes."""
        changes = patch.model_dump(exclude_unset=True)
        _check_storable(changes)
        with self._lock:
            entry = self.entry(rollout_id)
            before = entry.state
            if "state" in changes and changes["state"] not in NEXT[before]:
                raise RefusedRequestError(
                    409, f"Rollout {rollout_id}: cannot transition {before} -> {changes['state']}"
                )
            if changes:
                _update(entry, **changes)
        if entry.state is before:
            return entry.wire
        if entry.state is State.RUNNING:
            started = replace(entry.record, state=RolloutState.RUNNING, started_at=entry.wire.status.updated_at)
            entry.record = started
            await asyncio.wrap_future(self._store.put_rollout(started))
            return entry.wire
        await asyncio.to_thread(self._gateway.close_rollout, rollout_id)  # until then a call may be under way
        await asyncio.wrap_future(self._end(entry, self._outcome(entry)))
        return entry.wire

    async def remove(self, rollout_id: str) -> None:
        """Forget it here, ended as cancelled if it was not over; the store keeps what it recorded. Idempotent."""
        entry = self._entries.get(rollout_id)
        if entry is None:
            return
        if NEXT[entry.state]:
            _update(entry, state=State.FAILED, error_message="deleted")
            await asyncio.to_thread(self._gateway.close_rollout, rollout_id)
            await asyncio.wrap_future(self._end(entry, Outcome.CANCELLED))
        self._entries.pop(rollout_id, None)

    def access(self, rollout_id: str, attempt_id: str) -> Access:
        """The way to the model for an attempt; a new attempt ends the earlier ones.

        Raises `RefusedRequestError` 404, or 409 when the rollout or the attempt is over.
        """
        with self._lock:
            entry = self.entry(rollout_id)
            if not NEXT[entry.state]:
                raise RefusedRequestError(409, f"Rollout {rollout_id} has ended: {entry.state}")
            if attempt_id not in entry.attempts:
                entry.attempts.append(attempt_id)
                entry.access = self._gateway.open_rollout(rollout_id, attempt=len(entry.attempts))
            if attempt_id != entry.attempts[-1] or entry.access is None:
                raise RefusedRequestError(409, f"Rollout {rollout_id}: attempt {attempt_id} has been replaced")
            return entry.access

    async def post(self, rollout_id: str, attempt_id: str, event: NewEvent) -> WireEvent:
        """Record what an agent posts. A reward counts for the rollout's record until the rollout has ended."""
        entry = self.entry(rollout_id)
        _check_storable(event.data)
        posted = WireEvent(
            event_type=event.event_type,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            timestamp=time.time(),
            data=event.data,
        )
        entry.events.append(posted)
        data = {"attempt": attempt_id, "type": event.event_type, "data": event.data}
        await asyncio.wrap_future(self._store.put_event("agl_event", self.run.id, rollout_id, data))
        return posted

    async def events(self, rollout_id: str) -> list[WireEvent]:
        """Calls and posted events of the attempt that counts, by time."""
        entry = self.entry(rollout_id)
        posted = [event for event in entry.events if event.attempt_id == entry.attempt]
        if entry.attempt not in entry.attempts:
            return posted
        number = entry.attempts.index(entry.attempt) + 1
        calls = await asyncio.to_thread(self._store.calls, rollout_id, attempt=number)
        where = {"model": self.model, "endpoint": f"{self._gateway.url}/v1"}
        said = [call_event(call, entry.attempt, **where) for call in calls]
        return sorted([*said, *posted], key=lambda event: event.timestamp)

    def _put_run(self, state: str, **changes: Any) -> None:
        self.run = replace(self.run, state=state, **changes)
        self._store.put_run(self.run)

    def _create(self, asked: NewRollout) -> tuple[Entry, bool]:
        with self._lock:
            rollout_id = asked.rollout_id or f"r-{ULID()}"
            if rollout_id in self._entries:
                return self._entries[rollout_id], False
            if self._is_taken(rollout_id):
                raise RefusedRequestError(409, f"Rollout {rollout_id} belongs to another run of this lab")
            now = time.time()
            entry = Entry(
                _record(asked, rollout_id, self.run.id, now),
                WireRollout(
                    rollout_id=rollout_id,
                    input=asked.input,
                    is_train=asked.is_train,
                    config=asked.config or Config(),
                    metadata=asked.metadata or Metadata(),
                    status=Status(created_at=now, updated_at=now),
                ),
            )
            self._entries[rollout_id] = entry
            return entry, True

    def _is_taken(self, rollout_id: str) -> bool:
        try:
            self._store.rollout(rollout_id)
        except UnknownIdError:
            return False
        return True

    def _outcome(self, entry: Entry) -> Outcome:
        if entry.state is State.SUCCEEDED:
            return Outcome.COMPLETED
        faults = self._gateway.faults(entry.record.id)
        message = entry.wire.status.error_message or ""
        if faults:
            return Outcome(faults[-1])
        if "timed out" in message or "DeadlineExceeded" in message:
            return Outcome.TIMEOUT
        return Outcome.LOST if any(words in message for words in _LOST) else Outcome.AGENT_ERROR

    def _end(self, entry: Entry, outcome: Outcome) -> Future[int]:
        """Write the terminal record; the entry's status is terminal already."""
        status = entry.wire.status
        reward = None if outcome in INFRASTRUCTURE_OUTCOMES else _reward(entry)
        entry.record = replace(
            entry.record,
            state=_RECORDED[outcome] if outcome in _RECORDED else RolloutState(status.state),
            outcome=outcome,
            attempt=entry.attempts.index(entry.attempt) + 1 if entry.attempt in entry.attempts else 1,
            reward=reward,
            verdict="" if reward is not None else "The agent posted no reward before it ended.",
            error=status.error_message or "",
            finished_at=status.updated_at,
        )
        self._ended.append(entry.record.id)
        return self._store.put_rollout(entry.record)


def _update(entry: Entry, **changes: Any) -> None:
    """A new version of the rollout's status."""
    status = entry.wire.status
    changed = status.model_copy(update={**changes, "version": status.version + 1, "updated_at": time.time()})
    entry.wire = entry.wire.model_copy(update={"status": changed})


def _terminal_item(wire: WireRollout) -> TerminalItem:
    return TerminalItem(
        rollout_id=wire.rollout_id, state=wire.status.state, data_id=_data_id(wire.input), is_train=wire.is_train
    )


def _record(asked: NewRollout, rollout_id: str, run_id: str, now: float) -> Rollout:
    """The rollout as this lab records it. Equal inputs are one task, and its rollouts are one group."""
    content = orjson.dumps(asked.input, option=orjson.OPT_SORT_KEYS)
    task_id = _data_id(asked.input) or f"agl-{hashlib.sha256(content).hexdigest()[:16]}"
    fields = asked.input if isinstance(asked.input, dict) else {"input": asked.input}
    config = asked.config or Config()
    name = (config.local and config.local.agent_class) or "external agent"
    return Rollout(
        id=rollout_id,
        run_id=run_id,
        group_id=f"g-{task_id}",
        task=Task(id=task_id, prompt=_prompt(asked.input), source="agl_compat", fields=fields),
        harness=HarnessInfo(name=name, version="", kind="command"),
        mode="train" if asked.is_train else "eval",
        state=RolloutState.QUEUING,
        created_at=now,
    )


def _prompt(given: Any) -> str:
    """What people read as the task; inputs have no fixed shape."""
    if isinstance(given, dict):
        given = next((given[name] for name in ("prompt", "question", "problem", "task") if name in given), given)
    return given if isinstance(given, str) else orjson.dumps(given).decode()


def _data_id(given: Any) -> str:
    return str(given.get("data_id") or given.get("instance_id") or "") if isinstance(given, dict) else ""


def _reward(entry: Entry) -> float | None:
    """The last reward that the agent posted in the attempt that counts."""
    posted = [event for event in entry.events if event.event_type == REWARD and event.attempt_id == entry.attempt]
    return reward_value(posted[-1].data) if posted else None


def _check_storable(value: Any) -> None:
    """Raises `RefusedRequestError` 422 for JSON that no UTF-8 file can hold (lone surrogates, huge integers)."""
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise RefusedRequestError(422, f"The request cannot be stored: {error}") from None
