"""Where rollouts work: one folder per lab, gone with it; what labs that were killed left is removed by the next one."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lightning_lab.controller.workdirs import Workdir

_PREFIX = "lightning-lab-"
_OWNER = "owner"
"""A file that the owner holds locked: a process that is dead holds nothing, however it died."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder for rollouts.

    Not below the notebook's project, whose instructions (``AGENTS.md``, ``CLAUDE.md``) coding agents would find in a
    parent folder and follow.
    """
    _remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with ExitStack() as stack:
        stack.callback(Workdir(folder).remove)
        owner = stack.enter_context((folder / f".{_OWNER}").open("w"))
        fcntl.flock(owner, fcntl.LOCK_EX)
        (folder / f".{_OWNER}").rename(folder / _OWNER)  # only now may others look whether it is locked
        yield folder


def _remove_leftovers() -> None:
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        try:
            with owner.open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                Workdir(owner.parent).remove()
        except OSError:  # it is in use, or another user's
            continue
