"""How often threads take turns while a gateway runs in the kernel.

A thread that computes in pure Python gives the interpreter away every 5 ms, and a call needs it a dozen times: beside
a busy cell the gateway would answer a fifth of what it can. Shorter turns cost that cell little: one ends early only
while a call wants to go on.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

TURN_S = 0.0002

_lock = threading.Lock()
_open = 0
_before = 0.0


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Inside, threads take turns of at most `TURN_S`; afterwards as before. Gateways may overlap."""
    global _open, _before
    with _lock:
        if not _open:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, TURN_S))
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                sys.setswitchinterval(_before)
