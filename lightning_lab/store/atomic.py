"""Files that are either the old or the new, whatever dies in between."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty temporary file beside ``path`` to fill; at the end it is synced and renamed over ``path``.

    After an exception ``path`` is untouched and the temporary file is gone.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        os.fchmod(descriptor, 0o644)  # mkstemp makes private files; a run is shared like its neighbours
        yield temporary
        os.fsync(descriptor)
        temporary.replace(path)
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the contents of ``path``."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
