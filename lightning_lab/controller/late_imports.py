"""Libraries import much of themselves when they are first used. In a forked agent that is work done in vain each time:
the first agents say what they imported late, and the fork server imports it once for those that follow.

Only installed packages count. The user's own modules are loaded anew when they change, so they are left alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import sys
from collections.abc import Iterable

_MOST = 500
_INSTALLED = tuple(f"{prefix}{os.sep}" for prefix in {sys.prefix, sys.base_prefix})


_known: frozenset[str] | None = None


def take_stock() -> None:
    """Everything imported by now is no late import. Said before the fork: looking at each module touches, and so
    copies, hundreds of pages."""
    global _known
    _known = frozenset(sys.modules)


def late_ones() -> list[str]:
    """Installed modules imported since `take_stock`, in the order of their import; none if that was never said."""
    if _known is None:
        return []
    late = list(itertools.takewhile(lambda name: name not in _known, reversed(sys.modules)))
    return [name for name in reversed(late) if _is_installed(name)][:_MOST]


def names_in(claim: object) -> list[str]:
    """What an agent's process claims, which may be anything, as module names."""
    if not isinstance(claim, list):
        return []
    return [name for name in claim[:_MOST] if isinstance(name, str) and name.replace(".", "").isidentifier()]


def import_all(names: Iterable[str]) -> None:
    """Import what can be imported and is installed, if a trial in a process of its own shows that it does no harm."""
    wanted = [name for name in names if name not in sys.modules]
    if wanted and _trial(wanted):
        _import(wanted)


def _trial(names: Iterable[str]) -> bool:
    """Whether importing ends well and starts no thread: the fork server must stay single-threaded."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _import(names)
            code = int(len(os.listdir("/proc/self/task")) > 1)  # noqa: PTH208
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _import(names: Iterable[str]) -> None:
    for name in names:
        try:
            if _origin(name).startswith(_INSTALLED):
                importlib.import_module(name)
        except Exception:
            continue


def _origin(name: str) -> str:
    spec = importlib.util.find_spec(name)
    return (spec.origin or "") if spec is not None else ""


def _is_installed(name: str) -> bool:
    spec = getattr(sys.modules[name], "__spec__", None)
    return spec is not None and spec.name == name and (spec.origin or "").startswith(_INSTALLED)
