"""A finished generation → the reply on the wire and the call in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lightning_lab.gateway.auth import Grant
from lightning_lab.gateway.draft import Draft
from lightning_lab.gateway.protocols.steering import steering
from lightning_lab.gateway.protocols.wire import Choice, Head, Request, Wire
from lightning_lab.policy.base import ChatPolicy, ChatReply, Policy, has_engine
from lightning_lab.records import Call, Message, Sampling

_INLINE_TOKENS = 4096
"""Replies up to this many tokens are parsed on the event loop; longer ones, and those of an engine, in a thread."""


def ask(endpoint: ChatPolicy, request: Request, used: Sampling) -> ChatReply:
    """The reply of a chat-level endpoint to a request; nothing is sent before it is listened to."""
    if request.prompt is not None:
        return endpoint.complete(request.prompt, used)
    return endpoint.chat(request.messages, request.tools, used, steering(request))


async def choice_of(policy: Policy, draft: Draft, head: Head, index: int, *, tool_prefix: str) -> Choice:
    """Parse what was sampled; its tool calls get minted ids that begin with ``tool_prefix``."""
    ids = draft.ids
    if draft.reply is not None:
        parsed, stopped_by = draft.reply.message, draft.reply.stopped_by
    else:
        tools = head.request.tools
        inline = len(ids) <= _INLINE_TOKENS and not has_engine(policy)
        parsed = policy.parse(ids, tools) if inline else await asyncio.to_thread(policy.parse, ids, tools)
        parsed, stopped_by = _without_stop(parsed, draft.used.stop)
    message = _with_minted_ids(parsed, tool_prefix + (f"{head.suffix}_{index}" if head.request.n > 1 else head.suffix))
    raw = head.request.prompt is not None
    return Choice(
        message=message,
        text=(policy.decode(ids) if parsed.tool_calls else parsed.content) if raw else "",
        finish_reason=draft.finish_reason or "stop",
        stopped_by=stopped_by,
        sampled_tokens=len(ids),
        tokens=_token_texts(policy, draft) if head.request.logprobs else (),
    )


def call_record(
    grant: Grant, wire: Wire, head: Head, draft: Draft, choice: Choice | None, *, arrived_at: float, error: str
) -> Call:
    """The record of one call. Without a choice it is a call that failed: what was sampled is kept, undelivered."""
    request = head.request
    reply = choice.message if choice else _said(draft)
    return Call(
        id=draft.id,
        rollout_id=grant.rollout_id,
        attempt=grant.attempt,
        ordinal=draft.ordinal,
        request_id=head.id,
        protocol=wire.name,
        model=request.model,
        messages=request.messages,
        tools=request.tools,
        reply=reply,
        prompt_ids=draft.prompt,
        sampled_ids=draft.ids,
        logprobs=draft.logprobs,
        versions=draft.versions,
        finish_reason=draft.finish_reason or "abort",
        asked=request.asked,
        used=draft.used,
        arrived_at=arrived_at,
        held_s=draft.held_s,
        started_at=draft.started_at,
        finished_at=draft.finished_at,
        delivered=False,
        minted_ids=_minted(wire, head, reply) if choice else (),
        kept_replies=draft.kept,
        left_replies=draft.left,
        thread=draft.place.thread,
        parent_id=draft.parent_id,
        kind=draft.place.kind if choice else "undelivered",
        error=error,
        request_extra={**request.extra, **_left_out(draft)},
    )


def _said(draft: Draft) -> Message:
    """What is known of a reply that was not parsed."""
    return draft.reply.message if draft.reply is not None else Message(role="assistant")


def _left_out(draft: Draft) -> dict[str, Any]:
    """What a chat-level endpoint did not tell about the tokens."""
    missing = draft.reply.missing if draft.reply is not None else ()
    return {"endpoint_left_out": list(missing)} if missing else {}


def _without_stop(message: Message, stops: tuple[str, ...]) -> tuple[Message, str]:
    """No protocol shows the text that ended a reply; its ids are sampled all the same. Returns that text too."""
    for stop in stops:
        if message.content.endswith(stop):
            return replace(message, content=message.content.removesuffix(stop)), stop
    return message, ""


def _with_minted_ids(message: Message, stem: str) -> Message:
    if not message.tool_calls:
        return message
    calls = tuple({**call, "id": f"{stem}_{place}"} for place, call in enumerate(message.tool_calls))
    return replace(message, tool_calls=calls)


def _minted(wire: Wire, head: Head, reply: Message) -> tuple[str, ...]:
    ids = [head.id, *(call["id"] for call in reply.tool_calls)]
    if wire.signs_reasoning and reply.reasoning:
        ids.append(head.reasoning_id)
    return tuple(ids)


def _token_texts(policy: Policy, draft: Draft) -> Sequence[tuple[str, float]]:
    """Text and log-prob of every id; NaN for all where it is not known whose they are."""
    if draft.reply is not None:
        return draft.reply.tokens
    ids, logprobs = draft.ids, draft.logprobs
    placed = logprobs if len(logprobs) == len(ids) else np.full(len(ids), np.nan, np.float32)
    return [(policy.decode(ids[at : at + 1]), float(placed[at])) for at in range(len(ids))]
