"""What a rollout uses now, for the limits that no kernel keeps: looked at in turns, measured when there is cause.

A look costs two system calls, as hundreds of supervisors take it: how many tasks has the machine, how much room its
disk? Where the kernel keeps the other limits, the next look may wait for as long as filling the quota takes. Only where
a gauge has moved by a part of the limit, or ten seconds have passed, the rollout's own processes are counted and its
own files added up.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_lab.controller.cgroups import Group
from lightning_lab.controller.process_tree import at_once, descendants, tasks_exceed

LOOK_S = 1.0
_LONGEST_LOOK_S = 6.0
_FASTEST_DISK = 1e9
"""Bytes per second that an agent can hardly write faster."""
_PART = 8
"""A gauge that has moved by this part of a limit is cause to measure."""
_REST = 30
"""Between two measurements passes at least so many times what the last one took."""
_ANYWAY_S = 10.0


class Usage:
    """Watches one rollout for its supervisor. ``over``: the limit that it went over, as words; empty if none."""

    def __init__(self, limits: Mapping[str, Any], folders: Sequence[str], group: Group) -> None:
        self._limits, self._folders, self._group = limits, folders, group
        self._refusals = group.refusals()
        self._tasks = _Gauge(None if group.counts_processes else limits["processes"])
        self._disk = _Gauge(limits["disk"])
        self.look_s = self._seconds_between_looks()
        """Seconds from one look to the next."""
        self.over = ""
        self.memory_is_over = False
        self.look()

    def _seconds_between_looks(self) -> float:
        if not self._group.counts_processes:
            return LOOK_S / 2
        if self._limits["memory"] is not None and not self._group.counts_memory:
            return LOOK_S
        disk = self._limits["disk"]
        return _LONGEST_LOOK_S if disk is None else min(max(disk / _FASTEST_DISK, LOOK_S), _LONGEST_LOOK_S)

    def look(self, *, is_last: bool = False) -> bool:
        """Whether all is well. The last look adds up the files in any case: what was quick counts too."""
        self.over = self.over or self._processes() or self._memory() or self._files(is_last)
        return not self.over

    def _processes(self) -> str:
        most = self._limits["processes"]
        if self._group.refusals() > self._refusals:
            return f"it wanted more than {most} processes and threads at one time (Limits.processes)"
        if self._tasks.has_moved(_tasks_of_the_machine):
            with self._tasks.measuring(), at_once():
                is_over = tasks_exceed(os.getpid(), most)
            if is_over:
                return f"it had more than {most} processes and threads at one time (Limits.processes)"
        return ""

    def _memory(self) -> str:
        most = self._limits["memory"]
        if most is None or self._group.counts_memory:
            return ""
        now = sum(map(_memory, descendants(os.getpid())))
        self.memory_is_over = now > most
        return f"it used {_gb(now)} of memory; {_gb(most)} are allowed (Limits.memory_gb)" if now > most else ""

    def _files(self, is_last: bool) -> str:
        if self._limits["disk"] is None:
            return ""
        if is_last or self._disk.has_moved(lambda: -_room(self._folders[0])):
            with self._disk.measuring():
                now = sum(map(size_of, self._folders))
            if now > self._limits["disk"]:
                return f"it used {_gb(now)} of disk; {_gb(self._limits['disk'])} are allowed (Limits.disk_gb)"
        return ""


class _Gauge:
    """A cheap number of the whole machine that rises with a dear one of the rollout."""

    def __init__(self, limit: int | None) -> None:
        self._step = max(1, (limit or 0) // _PART)
        self._lowest: int | None = None
        self._due = math.inf if limit is None else 0.0
        self._anyway = time.monotonic() + _ANYWAY_S

    def has_moved(self, read: Callable[[], int]) -> bool:
        """Whether there is cause to measure now."""
        now = time.monotonic()
        if now < self._due:
            return False
        value = read()
        if self._lowest is None or value < self._lowest:
            self._lowest = value
        return value >= self._lowest + self._step or now >= self._anyway

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """The next cause is what moves from here on."""
        began = time.monotonic()
        yield
        ended = time.monotonic()
        self._lowest, self._due, self._anyway = None, ended + _REST * (ended - began), ended + _ANYWAY_S


def size_of(folder: str) -> int:
    """Bytes on disk of everything below a folder; what vanishes or cannot be read counts nothing."""
    total, todo = 0, [folder]
    while todo:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
    return total


def _tasks_of_the_machine() -> int:
    return int(Path("/proc/loadavg").read_bytes().split()[3].split(b"/")[1])


def _room(folder: str) -> int:
    """Bytes free where the folder is."""
    try:
        told = os.statvfs(folder)
    except OSError:
        return 0
    return told.f_bavail * told.f_frsize


def _memory(pid: int) -> int:
    """Bytes; pages that several processes share count in parts."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(b"Pss:")).split()[1])
    return 0


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
