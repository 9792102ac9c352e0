"""The rollouts of external controllers: made over REST or by the lab, run elsewhere, recorded like all others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import orjson
from ulid import ULID

from lightning_lab.gateway.agl.entry import Entry, made_here, made_there, terminal_item
from lightning_lab.gateway.agl.events import REWARD, call_event, reward_value
from lightning_lab.gateway.agl.wire import (
    NEXT,
    Config,
    NewEvent,
    NewRollout,
    State,
    StatusPatch,
    TerminalPage,
    WireEvent,
    WireRollout,
)
from lightning_lab.gateway.auth import Access
from lightning_lab.gateway.protocols.fields import deeper
from lightning_lab.gateway.tamper import tampering
from lightning_lab.records import Outcome, Rollout, RolloutState, Run, Sampling
from lightning_lab.store import Store
from lightning_lab.store.errors import UnknownIdError


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
    def open_rollout(self, rollout_id: str, *, attempt: int = 1, sampling: Sampling | None = None) -> Access: ...
    def close_rollout(self, rollout_id: str) -> None: ...
    def faults(self, rollout_id: str) -> list[str]: ...


class AglRollouts:
    """All of them, in the order of their making; those made over REST belong to one run, tagged ``agl_compat``.

    Thread-safe.
    """

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
        return sum(entry.is_open for entry in list(self._entries.values()))

    def start(self) -> None:
        """Begin the run that holds them."""
        self._put_run("running")

    def close(self) -> None:
        """End what is still open as cancelled. Idempotent."""
        for rollout_id in list(self._entries):
            self.cancel(rollout_id, "The lab stopped serving external controllers.")
        if self.run.state == "running":
            self._put_run("finished", finished_at=time.time())

    # -- making and ending --------------------------------------------------------------------------------------------

    async def create(self, asked: Sequence[NewRollout]) -> list[WireRollout]:
        """Queue them; one whose id is known already is left as it is. Returns when they are committed."""
        for one in asked:
            _check_storable(one.model_dump())
        made = [self._create(one) for one in asked]
        for written in [self._store.put_rollout(entry.record) for entry, new in made if new]:
            await asyncio.wrap_future(written)
        return [entry.wire for entry, _ in made]

    def hand_out(
        self, rollout: Rollout, config: Config, *, sampling: Sampling | None, must_reward: bool
    ) -> Future[Rollout]:
        """Queue a rollout of the lab's own. The future gives the terminal record, after its commit."""
        entry = made_here(rollout, config, sampling=sampling, must_reward=must_reward)
        _check_storable(entry.wire.input)
        self._store.put_rollout(rollout)
        with self._lock:
            self._entries[rollout.id] = entry
        return entry.future

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
                entry.update(**changes)
            moved, ended = entry.state is not before, not entry.is_open
            started = self._run_on(entry) if moved and not ended else None
        if started is not None:
            await asyncio.wrap_future(started)
        elif moved:
            await self._finish(entry)
        return entry.wire

    def cancel(self, rollout_id: str, reason: str = "cancelled") -> None:
        """End a rollout as cancelled; one that is over or unknown is left alone."""
        with self._lock:
            entry = self._entries.get(rollout_id)
            if entry is None or not entry.is_open:
                return
            entry.update(state=State.FAILED, error_message=reason)
        self._gateway.close_rollout(rollout_id)
        self._end(entry, Outcome.CANCELLED)

    async def remove(self, rollout_id: str) -> None:
        """Forget it here, ended as cancelled if it was not over; the store keeps what it recorded. Idempotent."""
        await asyncio.to_thread(self.cancel, rollout_id, "deleted")
        entry = self._entries.pop(rollout_id, None)
        if entry is not None:
            await asyncio.wrap_future(entry.future)

    # -- looking ------------------------------------------------------------------------------------------------------

    def entry(self, rollout_id: str) -> Entry:
        """Raises `RefusedRequestError` 404."""
        entry = self._entries.get(rollout_id)
        if entry is None:
            raise RefusedRequestError(404, f"Rollout not found: {rollout_id}")
        return entry

    def listed(self, states: set[State], limit: int) -> list[WireRollout]:
        """Those in one of the states, first come first."""
        entries = list(self._entries.values())
        return [entry.wire for entry in entries if entry.state in states][: max(0, limit)]

    def ended(self, after: int, limit: int) -> TerminalPage:
        """Those that have ended, in that order, from place ``after`` on."""
        after, limit = max(0, after), max(1, limit)
        ids = self._ended[after : after + limit]
        items = [terminal_item(self._entries[one].wire) for one in ids if one in self._entries]
        return TerminalPage(items=items, next_after=after + len(ids), total_terminal=len(self._ended))

    # -- what agents do -----------------------------------------------------------------------------------------------

    def access(self, rollout_id: str, attempt_id: str) -> Access:
        """The way to the model for an attempt; a new attempt ends the earlier ones.

        Raises `RefusedRequestError` 404, or 409 when the rollout or the attempt is over.
        """
        with self._lock:
            entry = self.entry(rollout_id)
            if not entry.is_open:
                raise RefusedRequestError(409, f"Rollout {rollout_id} has ended: {entry.state}")
            if attempt_id not in entry.attempts:
                entry.attempts.append(attempt_id)
                number, sampling = len(entry.attempts), entry.sampling
                entry.access = self._gateway.open_rollout(rollout_id, attempt=number, sampling=sampling)
            if attempt_id != entry.attempts[-1] or entry.access is None:
                raise RefusedRequestError(409, f"Rollout {rollout_id}: attempt {attempt_id} has been replaced")
            return entry.access

    async def post(self, rollout_id: str, attempt_id: str, event: NewEvent) -> WireEvent:
        """Record what an agent posts. A reward counts for the rollout's record until the rollout has ended.

        Of the lab's own rollouts each attempt is rewarded once: the same value again changes nothing, another one is
        refused (`RefusedRequestError` 409) and recorded.
        """
        entry = self.entry(rollout_id)
        first = entry.first_reward(attempt_id) if entry.rewards_once and event.event_type == REWARD else None
        if first is not None:
            if reward_value(first.data) != reward_value(event.data):
                await self._refuse_another_reward(entry, attempt_id)
            return first
        data = {"attempt": attempt_id, "type": event.event_type, "data": event.data}
        _check_storable(data)
        posted = WireEvent(
            event_type=event.event_type,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            timestamp=time.time(),
            data=event.data,
        )
        entry.events.append(posted)
        await asyncio.wrap_future(self._store.put_event("agl_event", entry.record.run_id, rollout_id, data))
        return posted

    async def _refuse_another_reward(self, entry: Entry, attempt_id: str) -> NoReturn:
        rollout_id = entry.record.id
        path = f"/api/rollouts/{rollout_id}/attempt/{attempt_id}/events"
        data = {"attempt": entry.number(attempt_id), **tampering("second_reward", "POST", path, 409)}
        await asyncio.wrap_future(self._store.put_event("tamper", entry.record.run_id, rollout_id, data))
        raise RefusedRequestError(409, f"Rollout {rollout_id}: attempt {attempt_id} has another reward already")

    async def events(self, rollout_id: str) -> list[WireEvent]:
        """Calls and posted events of the attempt that counts, by time."""
        entry = self.entry(rollout_id)
        found = [event for event in entry.events if event.attempt_id == entry.attempt]
        if entry.attempt_number:
            calls = await asyncio.to_thread(self._store.calls, rollout_id, attempt=entry.attempt_number)
            where = {"model": self.model, "endpoint": f"{self._gateway.url}/v1"}
            found += [call_event(call, entry.attempt, **where) for call in calls]
        return sorted(found, key=lambda event: event.timestamp)

    def note(self, kind: str, subject: str, data: Mapping[str, Any]) -> None:
        """Record an event of the run that these rollouts belong to."""
        self._store.put_event(kind, self.run.id, subject, data)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _create(self, asked: NewRollout) -> tuple[Entry, bool]:
        """The rollout, and whether it is new."""
        with self._lock:
            rollout_id = asked.rollout_id or f"r-{ULID()}"
            if rollout_id in self._entries:
                return self._entries[rollout_id], False
            if self._is_taken(rollout_id):
                raise RefusedRequestError(409, f"Rollout {rollout_id} belongs to another run of this lab")
            entry = self._entries[rollout_id] = made_there(asked, rollout_id, self.run.id)
            return entry, True

    def _is_taken(self, rollout_id: str) -> bool:
        try:
            self._store.rollout(rollout_id)
        except UnknownIdError:
            return False
        return True

    def _run_on(self, entry: Entry) -> Future[int]:
        """Record that it runs; under the lock, so that this comes before any end."""
        started_at = entry.wire.status.updated_at
        entry.record = replace(entry.record, state=RolloutState.RUNNING, started_at=started_at)
        return self._store.put_rollout(entry.record)

    async def _finish(self, entry: Entry) -> None:
        """Record the end that a controller reported; returns when it is committed."""
        await asyncio.to_thread(self._gateway.close_rollout, entry.record.id)  # a call may still be under way
        self._end(entry, entry.outcome(self._gateway.faults(entry.record.id)))
        await asyncio.wrap_future(entry.future)

    def _end(self, entry: Entry, outcome: Outcome) -> None:
        """Write the terminal record; whoever ends an entry has moved its wire state there, so this happens once."""
        record = entry.close(outcome)
        self._ended.append(record.id)

        def committed(written: Future[int]) -> None:
            error = written.exception()
            if error is None:
                entry.future.set_result(record)
            else:
                entry.future.set_exception(error)

        self._store.put_rollout(record).add_done_callback(committed)

    def _put_run(self, state: str, **changes: Any) -> None:
        self.run = replace(self.run, state=state, **changes)
        self._store.put_run(self.run)


def _check_storable(value: Any) -> None:
    """Raises `RefusedRequestError` 422 for JSON that no record can hold (half characters, huge integers, no bottom)."""
    try:
        orjson.dumps(deeper(value))
    except TypeError as error:
        raise RefusedRequestError(422, f"The request cannot be stored: {error}") from None
