"""What the calls of one rollout said, so that an echo of it finds the call it came from.

An echo is found by the tool-call ids that the gateway minted, else by the conversation: the same messages up to and
including the reply. Reasoning and arguments are left out of that comparison, because clients drop the one and
re-serialise the other; whether the *tokens* may be put back is decided by the text alone, in `stitch`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lightning_lab.records import Ids, Message

_MOST_ENTRIES = 32
_MOST_BYTES = 2 << 20
"""Kept for one rollout; the call that was used last stays, whatever its size."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One answered call."""

    call_id: str
    rendered: Ids
    """Its prompt as the template wrote it, shape [n]."""
    prompt: Ids
    """Its prompt as the model read it: stitched, shape [m]. Often the same array."""
    sampled: Ids

    @property
    def nbytes(self) -> int:
        """Memory that it keeps."""
        return sum(array.nbytes for array in {id(a): a for a in (self.rendered, self.prompt, self.sampled)}.values())


class Ledger:
    """The calls of one rollout attempt that may still be continued, latest used last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._by_minted: dict[str, str] = {}
        self._by_conversation: dict[int, str] = {}
        self._keys: dict[str, list[str | int]] = {}
        self._undelivered: set[str] = set()
        self._bytes = 0

    def add(self, entry: Entry, messages: Sequence[Message], reply: Message, minted: Sequence[str]) -> None:
        """A call was answered with ``reply``."""
        *_, conversation = _digests([*messages, reply])
        self._entries[entry.call_id] = entry
        self._undelivered.add(entry.call_id)
        self._bytes += entry.nbytes
        self._by_conversation[conversation] = entry.call_id
        self._by_minted.update(dict.fromkeys(minted, entry.call_id))
        self._keys[entry.call_id] = [conversation, *minted]
        while len(self._entries) > 1 and (len(self._entries) > _MOST_ENTRIES or self._bytes > _MOST_BYTES):
            self._evict()

    def find(self, messages: Sequence[Message]) -> Entry | None:
        """The call that the conversation continues: the one that said the last assistant message that is known."""
        found = None
        if self._entries:
            for message, digest in zip(messages, _digests(messages), strict=True):
                if message.role == "assistant":
                    found = self._said(message, digest) or found
        if found is None:
            return None
        self._entries.move_to_end(found)
        return self._entries[found]

    def deliver(self, call_id: str) -> None:
        """The last byte of the call's reply went out."""
        self._undelivered.discard(call_id)

    def take_proofs(self, messages: Sequence[Message]) -> list[str]:
        """Calls whose delivery was not seen, yet an id that was minted for them is echoed: told once."""
        if not self._undelivered:
            return []
        ids = (call["id"] for message in messages if message.role == "assistant" for call in message.tool_calls)
        proven = [call_id for call_id in dict.fromkeys(map(self._by_minted.get, ids)) if call_id in self._undelivered]
        self._undelivered.difference_update(proven)
        return [call_id for call_id in proven if call_id is not None]

    def _said(self, message: Message, conversation: int) -> str | None:
        for call in message.tool_calls:
            if call["id"] in self._by_minted:
                return self._by_minted[call["id"]]
        return self._by_conversation.get(conversation)

    def _evict(self) -> None:
        call_id, entry = self._entries.popitem(last=False)
        self._bytes -= entry.nbytes
        self._undelivered.discard(call_id)
        for key in self._keys.pop(call_id):
            if isinstance(key, int):
                if self._by_conversation.get(key) == call_id:
                    del self._by_conversation[key]
            elif self._by_minted.get(key) == call_id:
                del self._by_minted[key]


def _digests(messages: Sequence[Message]) -> Iterator[int]:
    """After each message: a hash of the conversation so far.

    Python's own hash is enough: it is keyed per process, a text keeps the hash it was given once, and what a false
    match would put back is compared as text before.
    """
    running = 0
    for message in messages:
        calls = tuple((call["id"], call["name"]) for call in message.tool_calls)
        running = hash((running, message.role, message.content, message.tool_call_id, calls))
        yield running
