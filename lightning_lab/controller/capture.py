"""Bounded capture of what a process prints: its beginning and its end, the rest only counted."""

from __future__ import annotations

KEPT_BYTES = 65536
"""Kept of each end of each stream."""


class Capture:
    """Feed it any number of bytes; it holds at most ``3 * kept`` of them."""

    def __init__(self, kept: int = KEPT_BYTES) -> None:
        self._kept = kept
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def feed(self, data: bytes) -> None:
        room = self._kept - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail += data[max(room, 0) :]
        if len(self._tail) > 2 * self._kept:
            self._left_out += len(self._tail) - self._kept
            del self._tail[: -self._kept]

    def text(self) -> str:
        """What was kept, with a line that says how much is missing between the two ends."""
        surplus = max(len(self._tail) - self._kept, 0)
        left_out = self._left_out + surplus
        head = self._head.decode("utf-8", "replace")
        tail = self._tail[surplus:].decode("utf-8", "replace")
        return f"{head}\n[… {left_out} bytes left out …]\n{tail}" if left_out else head + tail
