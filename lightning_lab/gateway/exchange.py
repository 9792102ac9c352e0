"""One request and its answer.

The order is the contract: what can be refused is refused before the request is held; a call is committed before its
last byte is sent, and counts as delivered after it. A client that disconnects cancels its generation; what was
sampled until then is stored as an undelivered call.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
from starlette.types import Scope, Send

from lightning_lab.gateway.auth import Grant
from lightning_lab.gateway.calltree import Identity, Place
from lightning_lab.gateway.delivery import Delivery
from lightning_lab.gateway.draft import Draft
from lightning_lab.gateway.errors import ClientGoneError, Fault, as_fault, bad_request
from lightning_lab.gateway.ledger import entry
from lightning_lab.gateway.prompt import PolicyDuty, Prompt
from lightning_lab.gateway.protocols.wire import Choice, Head, Request, Stream, Wire
from lightning_lab.gateway.reply import ask, call_record, choice_of
from lightning_lab.gateway.retries import Answered, digest
from lightning_lab.gateway.sampling import decide
from lightning_lab.gateway.serving import on_disconnect
from lightning_lab.gateway.telling import telling_of
from lightning_lab.policy.base import ContextOverflowError, PolicyError
from lightning_lab.records import Call

if TYPE_CHECKING:
    from lightning_lab.gateway.capture import Capture

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks, and how to answer."""

    wire: Wire
    grant: Grant
    who: Identity
    scope: Scope
    send: Send
    arrived_at: float


class Exchange:
    """One request and its answer."""

    def __init__(self, capture: Capture, asked: Asked) -> None:
        self.grant = asked.grant
        self.digest = 0
        """Of the request; 0 before it was read."""
        self._capture = capture
        self._wire = wire = asked.wire
        self._who = asked.who
        self._scope = asked.scope
        self._arrived_at = asked.arrived_at
        self._memory = capture.memory(asked.grant)
        self._gone = False
        self._heir = self._inherited = False
        """Whether this takes the place of another that was lost, and whether another takes the place of this."""
        self._abort_reason: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        patience = capture.patience
        self._delivery = Delivery(
            asked.send,
            lambda: self._gone,
            error=wire.error,
            early_s=patience.early_s,
            beat_s=patience.beat_s,
            tell_s=patience.tell_s,
        )

    async def run(self, raw: bytes) -> None:
        """Answer, or say why not. Raises nothing but cancellation."""
        watched = on_disconnect(self._scope, self._leave)
        try:
            await self._answer(raw)
        except ClientGoneError:
            pass  # nobody reads an answer
        except Exception as error:
            await self._fail(error)
        finally:
            self._delivery.abandon()
            watched()

    def abort(self, reason: Exception) -> None:
        """Stop holding or generating; a reply that is complete already is still delivered."""
        if self._abort_reason is None:
            self._abort_reason = reason
            if self._task is not None:
                self._task.cancel()

    @property
    def gone(self) -> bool:
        """Whether the client has disconnected."""
        return self._gone

    async def _answer(self, raw: bytes) -> None:
        request = self._read(raw)
        lost = self._memory.retries.replay(self.digest, retry=self._who.retry)
        if lost is not None:
            await self._send(replace(lost.head, request=request), lost)
            return
        superseding = self._supersede()
        prompt = await self._capture.prompt(request, len(raw), self._memory.ledger)
        place = self._memory.tree.place(self._who, request, prompt.turns)
        if superseding:
            place = replace(place, kind="retry")
        head, drafts = self._plan(request, prompt, place)
        stream = self._wire.stream(head) if request.stream else None
        telling = telling_of(self._capture.policy, drafts, stream)
        self._delivery.expect(stream, telling)
        try:
            await self._generate(drafts)
            head.prompt_tokens = len(drafts[0].prompt)
            choices = await self._parse(head, drafts)
            if telling is not None:
                telling.check(choices[0])
        except BaseException as error:
            self._record_failure(head, drafts, error)
            raise
        if self._heir:
            for draft in drafts:
                draft.place = replace(place, kind="retry")
        calls = [self._record(head, draft, choice) for draft, choice in zip(drafts, choices, strict=True)]
        await self._commit(calls)
        self._remember(prompt, request, calls, place)
        answered = self._memory.retries.answered(self.digest, head, choices, [call.id for call in calls])
        await self._finish(head, stream, answered)

    def _read(self, raw: bytes) -> Request:
        """The request as it was meant: echoes told, and tool arguments as they were said."""
        body = json_object(raw)
        self.digest = digest(self._wire.name, body)
        request = self._wire.read(body)
        ledger = self._memory.ledger
        for call_id in ledger.take_proofs(request.messages, request.signatures):
            self._capture.store.mark_delivered(call_id)  # who echoes a minted id has read the reply
        if not self._wire.parses_arguments:
            return request
        return replace(request, messages=ledger.as_said(request.messages))

    def _supersede(self) -> bool:
        """Whether this request takes the place of one that was lost; one that still runs is ended."""
        if self._memory.retries.supersedes(self.digest):
            return True
        earlier = self._capture.same(self) if self._who.retry else []
        if earlier and not any(other.gone for other in earlier):
            earlier[0].abort(Fault(409, "superseded", "The client sent this request again, as a retry of this one."))
        return bool(earlier)

    async def _send(self, head: Head, lost: Answered) -> None:
        """Once more what was sampled before."""
        stream = self._wire.stream(head) if head.request.stream else None
        self._delivery.expect(stream)
        await self._finish(head, stream, lost)

    async def _finish(self, head: Head, stream: Stream | None, answered: Answered) -> None:
        delivered = False
        try:
            delivered = await self._delivery.finish(lambda: self._body(head, stream, answered.choices))
        finally:
            answered.settle(lost=not delivered)
        if delivered:
            for call_id in answered.call_ids:
                self._capture.store.mark_delivered(call_id)
                self._memory.ledger.deliver(call_id)

    def _remember(self, prompt: Prompt, request: Request, calls: list[Call], place: Place) -> None:
        for call in calls:
            said = entry(call.id, prompt.rendered, prompt.ids, call.sampled_ids, thread=place.thread, kind=place.role)
            self._memory.ledger.add(said, request.messages, call.reply, call.minted_ids)

    def _body(self, head: Head, stream: Stream | None, choices: Sequence[Choice]) -> bytes:
        return stream.closing(choices) if stream else orjson.dumps(self._wire.answer(head, choices))

    async def _parse(self, head: Head, drafts: list[Draft]) -> list[Choice]:
        with PolicyDuty("parse a reply"):
            prefix = self._wire.tool_prefix
            return [
                await choice_of(self._capture.policy, draft, head, at, tool_prefix=prefix)
                for at, draft in enumerate(drafts)
            ]

    def _plan(self, request: Request, prompt: Prompt, place: Place) -> tuple[Head, list[Draft]]:
        """Everything that is decided before the request may be held."""
        policy, run = self._capture.policy, self.grant.sampling or self._capture.sampling
        endpoint = self._capture.endpoint
        room = policy.context_length - len(prompt.ids) if endpoint is None else None
        if room is not None and room < 1:
            raise ContextOverflowError(
                f"The prompt has {len(prompt.ids)} tokens, and the model's context length is {policy.context_length}. "
                "Shorten the conversation."
            )
        first, name = self.grant.next_ordinal, f"{int(1000 * self._arrived_at):012x}{secrets.token_hex(8)}"
        self.grant.next_ordinal += request.n
        drafts = [
            Draft(
                f"c-{name}" if request.n == 1 else f"c-{name}-{at}",
                prompt,
                place,
                decide(run, request, room=room, ordinal=first + at),
                first + at,
            )
            for at in range(request.n)
        ]
        if endpoint is not None:
            for draft in drafts:
                draft.reply = ask(endpoint, request, draft.used)
        head = Head(
            id=self._wire.answer_prefix + name,
            created=int(self._arrived_at),
            model=request.model or policy.name,
            request=request,
            used=drafts[0].used,
            prompt_tokens=len(prompt.ids),
        )
        return head, drafts

    async def _generate(self, drafts: list[Draft]) -> None:
        """Sample until every reply is complete. `abort` raises its reason here, as a time-out would."""
        if self._abort_reason is not None:
            raise self._abort_reason
        self._task = task = asyncio.current_task()
        assert task is not None
        try:
            while left := [draft for draft in drafts if draft.finish_reason is None]:
                await self._stay(left)
        except asyncio.CancelledError:
            if self._abort_reason is None or task.uncancel() > 0:
                raise
            raise self._abort_reason from None
        finally:
            self._task = None
            for draft in drafts:
                draft.stop()

    async def _stay(self, drafts: list[Draft]) -> None:
        """Wait for admission, then sample: to the end, or until a pause interrupts."""
        ticket = self._capture.admission.admit(
            lambda: self.abort(_aborted_by_pause()),
            interruptible=all(draft.can_go_on for draft in drafts),
            owner=self.grant.rollout_id,
        )
        try:
            async with ticket:
                for draft in drafts:
                    draft.start()
                await self._sample_all(drafts)
        finally:
            for draft in drafts:
                draft.held_s += ticket.held_s

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
        with PolicyDuty("generate a reply"):
            if draft.reply is not None:
                await draft.reply.listen()
                draft.finish_reason = draft.reply.finish_reason
                return
            chunks = self._capture.policy.generate(*draft.rest(), rollout_id=self.grant.rollout_id)
            try:
                async for chunk in chunks:
                    draft.add(chunk)
            finally:
                close = getattr(chunks, "aclose", None)  # leaving the loop early does not close a generator at once
                if close is not None:
                    await close()
        if draft.finish_reason not in ("stop", "length"):
            raise PolicyError(f"The generation broke off (finish reason {draft.finish_reason!r}).")

    def _leave(self) -> None:
        """The client is gone."""
        self._gone = True
        for other in self._capture.same(self):
            if other._arrived_at >= self._arrived_at and not (other.gone or other._heir or self._inherited):
                other._heir = self._inherited = True  # it was sent again before this was seen
        self.abort(ClientGoneError("The client disconnected before the reply was complete."))

    def _record(self, head: Head, draft: Draft, choice: Choice | None, error: str = "") -> Call:
        return call_record(self.grant, self._wire, head, draft, choice, arrived_at=self._arrived_at, error=error)

    def _record_failure(self, head: Head, drafts: list[Draft], error: BaseException) -> None:
        """Keep what was asked and sampled; nobody waits for it."""
        if not self._inherited:
            self._memory.retries.broke(self.digest)
        for draft in drafts:
            self._capture.store.put_call(self._record(head, draft, None, error=str(error) or type(error).__name__))

    async def _commit(self, calls: list[Call]) -> None:
        try:
            for written in [self._capture.store.put_call(call) for call in calls]:
                await self._capture.commits.wait(written)
        except Exception as error:
            _log.exception("A call of rollout %s could not be stored", self.grant.rollout_id)
            raise Fault(500, "store_error", f"The reply could not be stored, so it is not sent: {error}") from error

    async def _fail(self, error: Exception) -> None:
        fault = as_fault(error)
        if fault.code == "internal_error":
            _log.error("A call of rollout %s failed", self.grant.rollout_id, exc_info=error)
        self._capture.note(self.grant, error, fault)
        await self._delivery.fail(fault)


def json_object(raw: bytes) -> dict[str, Any]:
    """The body of a request. Raises `Fault` 400."""
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
