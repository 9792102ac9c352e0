"""One writer per store, over all processes: a second kernel on the same run must not repeat its rollouts.

A POSIX lock on a file beside the store: the system drops it when the process dies, however it dies, and a forked child
does not inherit it. (Not on the store's own file: closing a second handle would drop SQLite's locks.)
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from lightning_lab.store.errors import StoreBusyError, StoreError

_held: set[Path] = set()
"""POSIX locks do not exclude within a process; this does."""
_guard = threading.Lock()


class WriterLock:
    """Held from creation to `release`. Raises `StoreBusyError`."""

    def __init__(self, store: Path) -> None:
        self._store = store.absolute()
        with _guard:
            if self._store in _held:
                raise StoreBusyError(f"{store} is open for writing in this process already. Close that Store first.")
            self._descriptor = _lock_file(self._store)
            _held.add(self._store)

    def release(self) -> None:
        with _guard:
            if self._store in _held:
                _held.remove(self._store)
                os.close(self._descriptor)


def _lock_file(store: Path) -> int:
    path = f"{store}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(
            f"Cannot open the store {store}: {error.strerror} ({path}). Check that its folder exists and is writable."
        ) from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise StoreBusyError(
            f"{store} is open for writing in another process (pid {owner or 'unknown'}). "
            "Shut that kernel down, or open the store read-only."
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor
