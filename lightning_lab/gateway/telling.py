"""A streamed reply is told while it is being sampled, as far as it is sure what it will say.

What may still turn into a tool call, a thought or the text that ends the reply is kept back until it is known. A reply
is committed before the last byte of its stream, not before the first: a client that saw some of it and not its end has
an undelivered call.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from lightning_lab.gateway.draft import Draft
from lightning_lab.gateway.protocols.wire import Choice, Stream
from lightning_lab.policy.base import Beginning, Policy, PolicyError, TellsEarly
from lightning_lab.records import Message

_log = logging.getLogger(__name__)


def telling_of(policy: Policy, drafts: Sequence[Draft], stream: Stream | None) -> Telling | None:
    """What tells an answer early: one of a single reply, streamed, of which something may be sure before its end."""
    if stream is None or len(drafts) > 1:
        return None
    if drafts[0].reply is not None:
        return Telling(drafts[0], stream, None)
    return Telling(drafts[0], stream, policy.beginning()) if isinstance(policy, TellsEarly) else None


class Telling:
    """What is sure of one reply, and its events. ``beginning``: None where an endpoint tells it."""

    def __init__(self, draft: Draft, stream: Stream, beginning: Beginning | None) -> None:
        self._draft = draft
        self._stream = stream
        self._beginning = beginning
        self._kept_back = max(map(len, draft.used.stop), default=0)
        """Characters at the end that may be a stop text, which no protocol shows."""
        self._chunks = 0
        self._sure = self._told = Message(role="assistant")

    def look(self) -> bool:
        """Whether more has become sure since it was told."""
        try:
            self._sure = self._read() or self._sure
        except Exception:
            _log.exception("The beginning of a reply could not be told; the whole may be")
            self._beginning = None
        return self._sure != self._told

    def events(self) -> bytes:
        """The events of it."""
        self._told = self._sure
        return self._stream.progress(self._sure)

    def check(self, choice: Choice) -> None:
        """Raises `PolicyError` unless the reply begins as it was told."""
        message, told = choice.message, self._told
        if not (message.content.startswith(told.content) and message.reasoning.startswith(told.reasoning)):
            raise PolicyError("The policy parsed a reply into another text than its beginning, which was told before.")

    def _read(self) -> Message | None:
        if self._draft.reply is not None:
            return replace(self._draft.reply.message, tool_calls=())
        if self._beginning is None:
            return None
        ids, chunks = self._draft.ids_since(self._chunks)
        if chunks == self._chunks:
            return None
        self._chunks = chunks
        sure = self._beginning.read(ids)
        return replace(sure, content=sure.content[: -self._kept_back]) if self._kept_back else sure
