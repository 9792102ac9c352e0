"""One request → call records: render, wait for admission, generate, parse, store, and only then answer.

The order is the contract: what can be refused is refused before the request is held; a call is committed before its
last byte is sent, and counts as delivered after it. A client that disconnects cancels its generation; what was
sampled until then is stored as an undelivered call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from starlette.types import Receive, Send
from ulid import ULID

from lightning_lab.gateway.admission import Admission
from lightning_lab.gateway.auth import Grant, rollout_finished
from lightning_lab.gateway.delivery import Delivery
from lightning_lab.gateway.draft import Draft
from lightning_lab.gateway.errors import ClientGoneError, Fault, as_fault, bad_request
from lightning_lab.gateway.ledger import Entry, Ledger
from lightning_lab.gateway.prompt import Prompt, policy_duty, prompt_of
from lightning_lab.gateway.protocols.wire import Choice, Head, Request, Stream, Wire
from lightning_lab.gateway.reply import call_record, choice_of
from lightning_lab.gateway.sampling import decide
from lightning_lab.policy.base import ContextOverflowError, Policy, PolicyError
from lightning_lab.records import Call, Outcome, Sampling

_log = logging.getLogger(__name__)


class CallStore(Protocol):
    """What the gateway needs of the store. Futures resolve when the write is committed."""

    def put_call(self, call: Call) -> Future[int]: ...

    def mark_delivered(self, call_id: str) -> Future[int]: ...

    def put_event(self, kind: str, run_id: str, subject: str = "", data: Mapping[str, Any] = ...) -> Future[int]: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long clients are left in silence (seconds)."""

    early_s: float = 60.0
    """Until the headers of an answer that is not ready yet."""
    beat_s: float = 15.0
    """Between two signs of life after that."""


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
        self.store = store
        self.admission = admission
        self.sampling = sampling
        self.patience = patience
        self.stitching = stitching
        self._ledgers: dict[str, Ledger] = {}
        self._open: set[Exchange] = set()
        self._faults: dict[str, list[str]] = {}

    async def serve(
        self, wire: Wire, grant: Grant, raw: bytes, receive: Receive, send: Send, arrived_at: float
    ) -> None:
        """Answer one request whose body is ``raw``."""
        exchange = Exchange(self, wire, grant, receive, send, arrived_at)
        self._open.add(exchange)
        try:
            await exchange.run(raw)
        finally:
            self._open.discard(exchange)

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
        self._ledgers[rollout_id] = Ledger()
        self._faults.pop(rollout_id, None)

    def end(self, rollout_id: str) -> None:
        """The rollout is over: what it said is in the store. From any thread."""
        self._ledgers.pop(rollout_id, None)

    def ledger(self, grant: Grant) -> Ledger:
        """What the rollout's calls said so far; an empty one after its end."""
        return self._ledgers.get(grant.rollout_id) or Ledger()

    def note(self, grant: Grant, error: BaseException, fault: Fault) -> None:
        """Remember why a call failed."""
        outcome = _outcome(error)
        if outcome is not None:
            seen = self._faults.setdefault(grant.rollout_id, [])
            if outcome not in seen:
                seen.append(outcome)
        data = {"attempt": grant.attempt, "outcome": outcome or "", "code": fault.code, "message": fault.message}
        self.store.put_event("call_error", "", grant.rollout_id, data)


class Exchange:
    """One request and its answer."""

    def __init__(
        self, capture: Capture, wire: Wire, grant: Grant, receive: Receive, send: Send, arrived_at: float
    ) -> None:
        self.grant = grant
        self._capture = capture
        self._wire = wire
        self._receive = receive
        self._arrived_at = arrived_at
        self._ledger = capture.ledger(grant)
        self._gone = False
        self._abort_reason: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        patience = capture.patience
        self._delivery = Delivery(send, lambda: self._gone, early_s=patience.early_s, beat_s=patience.beat_s)

    async def run(self, raw: bytes) -> None:
        """Answer, or say why not. Raises nothing but cancellation."""
        watcher = asyncio.create_task(self._watch())
        try:
            await self._answer(raw)
        except ClientGoneError:
            pass  # nobody reads an answer
        except Exception as error:
            await self._fail(error)
        finally:
            self._delivery.abandon()
            watcher.cancel()

    def abort(self, reason: Exception) -> None:
        """Stop holding or generating; a reply that is complete already is still delivered."""
        if self._abort_reason is None:
            self._abort_reason = reason
            if self._task is not None:
                self._task.cancel()

    async def _answer(self, raw: bytes) -> None:
        request = self._wire.read(_json_object(raw))
        self._note_proofs(request)
        stitching = self._capture.stitching
        prompt = await prompt_of(self._capture.policy, request, len(raw), self._ledger, stitching=stitching)
        head, drafts = self._plan(request, prompt)
        stream = self._wire.stream(head) if request.stream else None
        self._delivery.expect(stream)
        try:
            await self._generate(drafts)
            choices = await self._parse(head, drafts)
        except BaseException as error:
            self._record_failure(head, drafts, error)
            raise
        calls = [self._record(head, draft, choice) for draft, choice in zip(drafts, choices, strict=True)]
        await self._commit(calls)
        self._remember(prompt, request, calls)
        if await self._delivery.finish(lambda: self._body(head, stream, choices)):
            self._delivered(calls)

    def _note_proofs(self, request: Request) -> None:
        """A client that echoes a minted id has read the reply, whatever became of its connection."""
        for call_id in self._ledger.take_proofs(request.messages):
            self._capture.store.mark_delivered(call_id)

    def _remember(self, prompt: Prompt, request: Request, calls: list[Call]) -> None:
        for call in calls:
            entry = Entry(call.id, prompt.rendered, prompt.ids, call.sampled_ids)
            self._ledger.add(entry, request.messages, call.reply, call.minted_ids)

    def _delivered(self, calls: list[Call]) -> None:
        for call in calls:
            self._capture.store.mark_delivered(call.id)
            self._ledger.deliver(call.id)

    def _body(self, head: Head, stream: Stream | None, choices: list[Choice]) -> bytes:
        return stream.closing(choices) if stream else orjson.dumps(self._wire.answer(head, choices))

    async def _parse(self, head: Head, drafts: list[Draft]) -> list[Choice]:
        with policy_duty("parse a reply"):
            return [await choice_of(self._capture.policy, draft, head, at) for at, draft in enumerate(drafts)]

    def _plan(self, request: Request, prompt: Prompt) -> tuple[Head, list[Draft]]:
        """Everything that is decided before the request may be held."""
        policy, run = self._capture.policy, self.grant.sampling or self._capture.sampling
        room = policy.context_length - len(prompt.ids)
        if room < 1:
            raise ContextOverflowError(
                f"The prompt has {len(prompt.ids)} tokens, and the model's context length is {policy.context_length}. "
                "Shorten the conversation."
            )
        parent_id = prompt.parent.call_id if prompt.parent else None
        first = self.grant.next_ordinal
        self.grant.next_ordinal += request.n
        drafts = [
            Draft(
                prompt.ids,
                parent_id,
                decide(run, request, room=room, ordinal=ordinal),
                ordinal,
            )
            for ordinal in range(first, first + request.n)
        ]
        head = Head(
            id=f"{self._wire.answer_prefix}{ULID()}",
            created=int(self._arrived_at),
            model=request.model or policy.name,
            request=request,
            used=drafts[0].used,
            prompt_tokens=len(prompt.ids),
        )
        return head, drafts

    async def _generate(self, drafts: list[Draft]) -> None:
        """Wait for admission, then sample; both end at once when the exchange is aborted."""
        with self._abortable():
            ticket = self._capture.admission.admit(lambda: self.abort(_aborted_by_pause()))
            try:
                async with ticket:
                    for draft in drafts:
                        draft.start(ticket.held_s)
                    await self._sample_all(drafts)
            finally:
                for draft in drafts:
                    draft.held_s = ticket.held_s
                    draft.stop()

    async def _sample_all(self, drafts: list[Draft]) -> None:
        if len(drafts) == 1:
            await self._sample(drafts[0])
            return
        tasks = [asyncio.create_task(self._sample(draft)) for draft in drafts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _sample(self, draft: Draft) -> None:
        with policy_duty("generate a reply"):
            chunks = self._capture.policy.generate(draft.prompt, draft.used, rollout_id=self.grant.rollout_id)
            try:
                async for chunk in chunks:
                    draft.add(chunk)
            finally:
                close = getattr(chunks, "aclose", None)  # leaving the loop early does not close a generator at once
                if close is not None:
                    await close()
        if draft.finish_reason not in ("stop", "length"):
            raise PolicyError(f"The generation broke off (finish reason {draft.finish_reason!r}).")

    @contextlib.contextmanager
    def _abortable(self) -> Iterator[None]:
        """Inside, `abort` raises its reason here, as a time-out would."""
        if self._abort_reason is not None:
            raise self._abort_reason
        self._task = task = asyncio.current_task()
        assert task is not None
        try:
            yield
        except asyncio.CancelledError:
            if self._abort_reason is None or task.uncancel() > 0:
                raise
            raise self._abort_reason from None
        finally:
            self._task = None

    async def _watch(self) -> None:
        """The body has been read, so the next message says that the client is gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self.abort(ClientGoneError("The client disconnected before the reply was complete."))

    def _record(self, head: Head, draft: Draft, choice: Choice | None, error: str = "") -> Call:
        return call_record(self.grant, self._wire, head, draft, choice, arrived_at=self._arrived_at, error=error)

    def _record_failure(self, head: Head, drafts: list[Draft], error: BaseException) -> None:
        """Keep what was asked and sampled; nobody waits for it."""
        for draft in drafts:
            self._capture.store.put_call(self._record(head, draft, None, error=str(error) or type(error).__name__))

    async def _commit(self, calls: list[Call]) -> None:
        try:
            for written in [self._capture.store.put_call(call) for call in calls]:
                await asyncio.wrap_future(written)
        except Exception as error:
            _log.exception("A call of rollout %s could not be stored", self.grant.rollout_id)
            raise Fault(500, "store_error", f"The reply could not be stored, so it is not sent: {error}") from error

    async def _fail(self, error: Exception) -> None:
        fault = as_fault(error)
        if fault.code == "internal_error":
            _log.error("A call of rollout %s failed", self.grant.rollout_id, exc_info=error)
        self._capture.note(self.grant, error, fault)
        await self._delivery.fail(fault)


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_type")
    return body


def _aborted_by_pause() -> Fault:
    return Fault(
        503, "aborted_by_pause", "The lab paused generation and this call took too long; send it again.", retry=True
    )


def _outcome(error: BaseException) -> Outcome | None:
    if isinstance(error, ContextOverflowError):
        return Outcome.CONTEXT_OVERFLOW
    if isinstance(error, PolicyError) and as_fault(error).status >= 500:
        return Outcome.POLICY_ERROR
    return None
