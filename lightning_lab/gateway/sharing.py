"""How a gateway shares the interpreter of the kernel that it runs in.

*Turns*: a thread that computes in pure Python gives the interpreter away every 5 ms, and a call needs it a dozen times:
beside a busy cell the gateway would answer a fifth of what it can. Shorter turns cost that cell little: one ends early
only while a call wants to go on.

*Collections*: hardly anything of a call is in a cycle, yet Python looks for cycles after every 700 new objects, which
are fewer than those of ten open calls, and now and then at all that the kernel holds, while every thread stands still.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator

TURN_S = 0.0002
COLLECT_AFTER = 10_000
"""New objects."""

_lock = threading.Lock()
_open = 0
_turn_before = 0.0
_collect_before = (0, 0, 0)


@contextlib.contextmanager
def good_neighbour() -> Iterator[None]:
    """Inside, threads take turns of at most `TURN_S`, and cycles are looked for after `COLLECT_AFTER` new objects, not
    before; afterwards as before. Gateways may overlap. Who has switched collections off finds them off."""
    global _open, _turn_before, _collect_before
    with _lock:
        if not _open:
            _turn_before, _collect_before = sys.getswitchinterval(), gc.get_threshold()
            sys.setswitchinterval(min(_turn_before, TURN_S))
            if 0 < _collect_before[0] < COLLECT_AFTER:
                gc.set_threshold(COLLECT_AFTER, *_collect_before[1:])
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if not _open:
                sys.setswitchinterval(_turn_before)
                gc.set_threshold(*_collect_before)
