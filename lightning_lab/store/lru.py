"""A mapping that forgets what was used longest ago once its values weigh too much."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class LruBytes(Generic[_Key, _Value]):
    """Thread-safe. The newest entry always stays, however heavy."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: _Key) -> _Value | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: _Key, value: _Value, size: int) -> None:
        with self._lock:
            self._bytes += size - self._entries.pop(key, (None, 0))[1]
            self._entries[key] = (value, size)
            while self._bytes > self._limit and len(self._entries) > 1:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._bytes -= dropped

    def drop(self, key: _Key) -> None:
        with self._lock:
            self._bytes -= self._entries.pop(key, (None, 0))[1]

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)
