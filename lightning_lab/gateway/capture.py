"""What all exchanges share: the policy, the store, admission, and what each rollout said so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from lightning_lab.gateway.admission import Admission
from lightning_lab.gateway.auth import Grant, rollout_finished
from lightning_lab.gateway.calltree import CallTree
from lightning_lab.gateway.commits import Commits
from lightning_lab.gateway.errors import Fault, as_fault
from lightning_lab.gateway.exchange import Asked, Exchange, json_object
from lightning_lab.gateway.ledger import Ledger
from lightning_lab.gateway.prompt import NO_IDS, Prompt, prompt_of
from lightning_lab.gateway.protocols.wire import Request, Wire
from lightning_lab.gateway.retries import Retries, digest
from lightning_lab.policy.base import ChatPolicy, ContextOverflowError, Policy, PolicyError
from lightning_lab.records import Call, Outcome, Sampling


class CallStore(Protocol):
    """What the gateway needs of the store. Futures resolve when the write is committed."""

    def put_call(self, call: Call) -> Future[int]: ...

    def mark_delivered(self, call_id: str) -> Future[int]: ...

    def put_event(self, kind: str, run_id: str, subject: str = "", data: Mapping[str, Any] = ...) -> Future[int]: ...

    def write_on(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long clients are left in silence (seconds)."""

    early_s: float = 60.0
    """Until the headers of an answer that is not ready yet."""
    beat_s: float = 15.0
    """Between two signs of life after that."""
    tell_s: float = 0.2
    """Between two looks at what a streamed reply says so far; shorter ones are told whole."""


class Memory:
    """What is known of one rollout attempt while it runs."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.tree = CallTree()
        self.retries = Retries()


class Capture:
    """Answers attributed requests and records them as calls."""

    def __init__(
        self,
        policy: Policy,
        store: CallStore,
        admission: Admission,
        *,
        sampling: Sampling,
        patience: Patience,
        stitching: bool,
    ) -> None:
        self.policy = policy
        self.endpoint = policy if isinstance(policy, ChatPolicy) else None
        """The policy, where it is asked with conversations instead of ids."""
        self.store = store
        self.commits = Commits()
        self.admission = admission
        self.sampling = sampling
        self.patience = patience
        self.stitching = stitching
        self._memories: dict[str, Memory] = {}
        self._open: dict[Exchange, None] = {}
        self._faults: dict[str, list[str]] = {}

    async def serve(self, asked: Asked, raw: bytes) -> None:
        """Answer one request whose body is ``raw``."""
        exchange = Exchange(self, asked)
        self._open[exchange] = None
        try:
            await exchange.run(raw)
        finally:
            del self._open[exchange]

    def same(self, exchange: Exchange) -> list[Exchange]:
        """The rollout's other open exchanges of the same request, first come first."""
        return [
            other
            for other in self._open
            if other is not exchange and other.grant is exchange.grant and other.digest == exchange.digest
        ]

    async def count(self, wire: Wire, grant: Grant, raw: bytes) -> int:
        """How many tokens the prompt of a request has. Raises `Fault`, `PolicyError`; nothing is recorded."""
        body = json_object(raw)
        digest(wire.name, body)  # refuses what is nested too deeply
        request = wire.read(body)
        if self.endpoint is not None:
            count = await self.endpoint.count(request.messages, request.tools)
            if count is None:
                raise Fault(404, "not_supported", f"{self.policy.name} does not tell how many tokens a prompt has.")
            return count
        return len((await self.prompt(request, len(raw), self.memory(grant).ledger)).ids)

    async def prompt(self, request: Request, size: int, ledger: Ledger) -> Prompt:
        """What the model is to read; no ids where an endpoint renders by itself."""
        if self.endpoint is not None:
            return Prompt(NO_IDS, NO_IDS, ledger.turns(request.messages, request.signatures))
        return await prompt_of(self.policy, request, size, ledger, stitching=self.stitching)

    def abort(self, grant: Grant | None, reason: Callable[[Grant], Fault]) -> None:
        """End every call that still generates or is held, of one grant or of all. Only on the event loop."""
        for exchange in list(self._open):
            if grant is None or exchange.grant is grant:
                exchange.abort(reason(exchange.grant))

    def abort_rollout(self, grant: Grant) -> None:
        """End the open calls of a rollout that is over."""
        self.abort(grant, lambda ended: rollout_finished(ended.rollout_id))

    def faults(self, rollout_id: str) -> list[str]:
        """Outcomes (`Outcome` values) that the rollout's failed calls stand for, each once, in order."""
        return list(self._faults.get(rollout_id, ()))

    def begin(self, rollout_id: str) -> None:
        """A new attempt: nothing was said and nothing failed yet. From any thread."""
        self._memories[rollout_id] = Memory()
        self._faults.pop(rollout_id, None)

    def end(self, rollout_id: str) -> None:
        """The rollout is over: what it said is in the store. From any thread."""
        self._memories.pop(rollout_id, None)

    def memory(self, grant: Grant) -> Memory:
        """What the rollout's calls said so far; an empty one after its end."""
        return self._memories.get(grant.rollout_id) or Memory()

    def note(self, grant: Grant, error: BaseException, fault: Fault) -> None:
        """Remember why a call failed."""
        outcome = _outcome(error)
        if outcome is not None:
            seen = self._faults.setdefault(grant.rollout_id, [])
            if outcome not in seen:
                seen.append(outcome)
        data = {"attempt": grant.attempt, "outcome": outcome or "", "code": fault.code, "message": fault.message}
        self.store.put_event("call_error", "", grant.rollout_id, data)


def _outcome(error: BaseException) -> Outcome | None:
    if isinstance(error, ContextOverflowError):
        return Outcome.CONTEXT_OVERFLOW
    if isinstance(error, PolicyError) and as_fault(error).status >= 500:
        return Outcome.POLICY_ERROR
    return None
