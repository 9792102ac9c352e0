"""Immutable values, each stored once: messages, tool lists, request parameters, tasks, harnesses."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Hashable, Sequence
from typing import Any

from lightning_lab.records import Message
from lightning_lab.store import rows
from lightning_lab.store.group import Group, in_pieces, marks

_HASH_BYTES = 20
_KNOWN_BYTES = 16 * 1024 * 1024
"""Memory for what is known to be stored; beyond it the file is asked."""
_ENTRY_BYTES = 300


class Contents:
    """The ids of values. Used by the writer thread only.

    A conversation is sent again with every call, so a message that was stored before is known by its own fields: only
    what is new is encoded and hashed.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[Hashable, int] = {}
        self._fresh: list[Hashable] = []
        """Known since `begin`."""
        self._bytes = 0

    def begin(self) -> None:
        """A group is put together. Only here may be forgotten what is too much: what waits is not in the file yet."""
        self._fresh.clear()
        if self._bytes > _KNOWN_BYTES:
            self._known.clear()
            self._bytes = 0

    def forget(self) -> None:
        """What was added since `begin` did not last."""
        for key in self._fresh:
            self._known.pop(key, None)
        self._fresh.clear()

    def forget_all(self) -> None:
        """Values were deleted; what is stored now is in the file."""
        self._known.clear()
        self._fresh.clear()
        self._bytes = 0

    def messages(self, group: Group, conversations: Sequence[Sequence[Message]]) -> list[list[int]]:
        """The ids of the messages of several conversations: one question to the file for all that may be new."""
        keys = [[_key(message) for message in conversation] for conversation in conversations]
        new = {
            key: message
            for some, conversation in zip(keys, conversations, strict=True)
            for key, message in zip(some, conversation, strict=True)
            if key not in self._known
        }
        if new:
            self._add(group, new)
        return [[self._known[key] for key in some] for some in keys]

    def one(self, group: Group, kind: str, value: Any) -> int:
        """The id of one value of another kind."""
        body = rows.content_body(value)
        key = (kind, body)
        ref = self._known.get(key)
        if ref is None:
            digest = _digest(kind, body)
            ref = self._stored([digest]).get(digest) or group.content(digest, kind, body)
            self._know(key, ref, len(body))
        return ref

    def _add(self, group: Group, new: dict[Hashable, Message]) -> None:
        bodies = [rows.content_body(message) for message in new.values()]
        digests = [_digest("message", body) for body in bodies]
        stored = self._stored(digests)
        for key, body, digest in zip(new, bodies, digests, strict=True):
            ref = stored.get(digest) or group.content(digest, "message", body)
            self._know(key, ref, len(body))

    def _know(self, key: Hashable, ref: int, size: int) -> None:
        self._known[key] = ref
        self._fresh.append(key)
        self._bytes += size + _ENTRY_BYTES

    def _stored(self, digests: Sequence[bytes]) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for size, some in in_pieces(digests):
            sql = f"SELECT hash, id FROM contents WHERE hash IN ({marks(size)})"
            found.update(self._connection.execute(sql, some).fetchall())
        return found


def _key(message: Message) -> Hashable:
    """Equal for equal messages and for no others."""
    calls = tuple(tuple(call.items()) for call in message.tool_calls) if message.tool_calls else ()
    images = tuple(tuple(image.items()) for image in message.images) if message.images else ()
    return (message.role, message.content, message.reasoning, calls, message.tool_call_id, message.name, images)


def _digest(kind: str, body: str) -> bytes:
    digest = hashlib.sha256(kind.encode() + b"\0")
    digest.update(body.encode())
    return digest.digest()[:_HASH_BYTES]
