"""Keeping hold of a tree of processes: dying with the parent, adopting orphans, killing every descendant."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_LIMIT_S = 10.0


def die_with_parent(parent: int, how: signal.Signals) -> None:
    """Get ``how`` when the parent is gone, also by SIGKILL. ``parent`` closes the race with a parent gone already."""
    _prctl(_PR_SET_PDEATHSIG, how)
    if os.getppid() != parent:
        os.kill(os.getpid(), how)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends: nothing leaves the tree by a double fork."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap() -> dict[int, int]:
    """Collect the children that have ended: pid → exit code (negative for a signal). Never blocks."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def kill_descendants(keep: frozenset[int] = frozenset()) -> dict[int, int]:
    """Kill everything below this process but the trees of ``keep``; returns what was reaped, as `reap` does.

    This process must adopt orphans. The tree is stopped before it is killed: a process that is stopped cannot fork
    away from under the list.
    """
    end = time.monotonic() + _KILL_LIMIT_S
    pause = 0.0005
    ended: dict[int, int] = {}
    while time.monotonic() < end:
        ended |= reap()
        stopped: set[int] = set()
        while new := descendants(os.getpid(), keep) - stopped:
            _send_all(new, signal.SIGSTOP)
            stopped |= new
        if not stopped:
            break
        _send_all(stopped, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return ended


def descendants(root: int, keep: frozenset[int] = frozenset()) -> set[int]:
    """Everything below ``root``, leaving out the trees of ``keep``."""
    found: set[int] = set()
    todo = [root]
    while todo:
        for child in _children(todo.pop()):
            if child not in found and child not in keep:
                found.add(child)
                todo.append(child)
    return found


def tasks_exceed(root: int, most: int) -> bool:
    """Whether there are more processes and threads below ``root``; it stops to count where there are."""
    count, todo = 0, _children(root)
    while todo and count <= most:
        pid = todo.pop()
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - the names alone are wanted
        todo.extend(_children(pid))
    return count > most


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Before all ordinary processes, where that is allowed: among a thousand that fork, an ordinary one hardly runs."""
    try:
        before, among = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, among)


def signal_group(leader: int, how: signal.Signals) -> None:
    """Signal a process group that may be gone."""
    try:
        os.killpg(leader, how)
    except (ProcessLookupError, PermissionError):
        return


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - the names alone are wanted
            found.extend(map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split()))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return found


def _send_all(pids: set[int], how: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, how)
        except (ProcessLookupError, PermissionError):
            continue


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
