"""What the calls of one rollout said, so that an echo of it finds the call it came from.

An echo is found by the ids that the gateway minted (tool calls, reasoning signatures), else by the conversation: the
same messages up to and including the reply. Reasoning and arguments are left out of that comparison, because clients
drop the one and re-serialise the other; whether the *tokens* may be put back is decided by the text alone, in `stitch`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from lightning_lab.records import Ids, Message

_MOST_READINGS = 32
_MOST_BYTES = 2 << 20
"""Prompts kept for one rollout; that of the call that was used last stays, whatever its size."""
_MOST_ENTRIES = 4096
"""Replies kept for one rollout."""
_HEADER = 4
"""Ids in front of a reply that are kept to find it again."""
_NO_SIGNATURES: Mapping[int, str] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The prompt of a call."""

    rendered: Ids
    """As the template wrote it, shape [n]."""
    prompt: Ids
    """As the model read it: stitched, shape [m]. Often the same array."""

    @property
    def nbytes(self) -> int:
        """Memory that it keeps."""
        return self.rendered.nbytes + (0 if self.prompt is self.rendered else self.prompt.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One answered call."""

    call_id: str
    header: Ids
    """The last ids of its prompt: what the template writes in front of a reply."""
    sampled: Ids
    reading: Reading | None
    """Forgotten after a while; then only the reply itself is put back."""
    thread: str = "main"
    kind: str = "main"


def entry(call_id: str, rendered: Ids, prompt: Ids, sampled: Ids, *, thread: str = "main", kind: str = "main") -> Entry:
    """An entry with everything that is known of the call."""
    header = np.array(rendered[-_HEADER:])  # a copy: a view would keep the whole prompt
    return Entry(call_id, header, sampled, Reading(rendered, prompt), thread, kind)


class Ledger:
    """The calls of one rollout attempt that may still be continued, latest used last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._read: OrderedDict[str, int] = OrderedDict()
        """Bytes of the readings that are still kept."""
        self._by_minted: dict[str, str] = {}
        self._by_conversation: dict[int, str] = {}
        self._arguments: dict[str, str] = {}
        self._keys: dict[str, list[str | int]] = {}
        self._undelivered: set[str] = set()
        self._bytes = 0

    def add(self, entry: Entry, messages: Sequence[Message], reply: Message, minted: Sequence[str]) -> None:
        """A call was answered with ``reply``."""
        *_, conversation = _digests([*messages, reply])
        self._entries[entry.call_id] = entry
        self._undelivered.add(entry.call_id)
        if entry.reading is not None:
            self._read[entry.call_id] = entry.reading.nbytes
            self._bytes += entry.reading.nbytes
        self._by_conversation[conversation] = entry.call_id
        self._by_minted.update(dict.fromkeys(minted, entry.call_id))
        self._arguments.update({call["id"]: call["arguments"] for call in reply.tool_calls})
        self._keys[entry.call_id] = [conversation, *minted]
        while len(self._read) > 1 and (len(self._read) > _MOST_READINGS or self._bytes > _MOST_BYTES):
            self._forget_reading()
        while len(self._entries) > _MOST_ENTRIES:
            self._evict()

    def turns(self, messages: Sequence[Message], signatures: Mapping[int, str] = _NO_SIGNATURES) -> list[Entry]:
        """The calls that said the conversation's assistant messages, in its order; unknown messages are left out."""
        if not self._entries:
            return []
        found: dict[str, None] = {}
        for at, (message, digest) in enumerate(zip(messages, _digests(messages), strict=True)):
            if message.role == "assistant":
                call_id = self._said(message, digest, signatures.get(at, ""))
                if call_id is not None:
                    found.setdefault(call_id)
        for call_id in found:
            self._entries.move_to_end(call_id)
            if call_id in self._read:
                self._read.move_to_end(call_id)
        return [self._entries[call_id] for call_id in found]

    def as_said(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The conversation with the very characters of tool arguments, where a protocol could carry only their value.

        Arguments whose value differs from what was said stay as the client sent them.
        """
        return tuple(self._with_arguments(message) if message.tool_calls else message for message in messages)

    def deliver(self, call_id: str) -> None:
        """The last byte of the call's reply went out."""
        self._undelivered.discard(call_id)

    def take_proofs(self, messages: Sequence[Message], signatures: Mapping[int, str] = _NO_SIGNATURES) -> list[str]:
        """Calls whose delivery was not seen, yet an id that was minted for them is echoed: told once."""
        if not self._undelivered:
            return []
        ids = [call["id"] for message in messages if message.role == "assistant" for call in message.tool_calls]
        ids += signatures.values()
        proven = [call_id for call_id in dict.fromkeys(map(self._by_minted.get, ids)) if call_id in self._undelivered]
        self._undelivered.difference_update(proven)
        return [call_id for call_id in proven if call_id is not None]

    def _said(self, message: Message, conversation: int, signature: str) -> str | None:
        for minted in (*(call["id"] for call in message.tool_calls), signature):
            if minted in self._by_minted:
                return self._by_minted[minted]
        return self._by_conversation.get(conversation)

    def _with_arguments(self, message: Message) -> Message:
        calls = tuple(self._with_said(call) for call in message.tool_calls)
        return message if calls == message.tool_calls else replace(message, tool_calls=calls)

    def _with_said(self, call: Mapping[str, str]) -> Mapping[str, str]:
        said = self._arguments.get(call["id"])
        if said is None or said == call["arguments"] or _value(said) != _value(call["arguments"]):
            return call
        return {**call, "arguments": said}

    def _forget_reading(self) -> None:
        call_id, size = self._read.popitem(last=False)
        self._bytes -= size
        self._entries[call_id] = replace(self._entries[call_id], reading=None)

    def _evict(self) -> None:
        call_id, _ = self._entries.popitem(last=False)
        self._bytes -= self._read.pop(call_id, 0)
        self._undelivered.discard(call_id)
        for key in self._keys.pop(call_id):
            if isinstance(key, int):
                if self._by_conversation.get(key) == call_id:
                    del self._by_conversation[key]
            elif self._by_minted.get(key) == call_id:
                del self._by_minted[key]
                self._arguments.pop(key, None)


def _digests(messages: Sequence[Message]) -> Iterator[int]:
    """After each message: a hash of the conversation so far.

    Python's own hash is enough: it is keyed per process, a text keeps the hash it was given once, and what a false
    match would put back is compared as text before.
    """
    running = 0
    for message in messages:
        calls = tuple((call["id"], call["name"]) for call in message.tool_calls)
        images = tuple(image["url"] for image in message.images) if message.images else ()
        running = hash((running, message.role, message.content, message.tool_call_id, calls, images))
        yield running


def _value(arguments: str) -> Any:
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
