"""Control groups: where the kernel itself counts, and bounds, the processes and the memory of a rollout.

Each supervisor makes a group for itself once and joins it, so that all it forks is inside from birth: to move a process
waits for every core, tens of milliseconds, too long for every rollout. Where no group can be made, `usage` counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

_PREFIX = "lightning-lab-"
_CONTROLLERS = ("pids", "memory")
_UNLIMITED = {"memory.max": "max", "memory.high": "max", "cpu.max": "max"}
_MEMORY_FILES = (("memory.max", "memory.events"), ("memory.limit_in_bytes", "memory.oom_control"))
"""Limit and events, in version 2 and in version 1."""
_REMOVAL_TRIES = 20

Places = Mapping[str, str]
"""Controller (``pids``, ``memory``) → the folder below which groups can be made."""


def find_places(process: Path = Path("/proc/self")) -> dict[str, str]:
    """The places this process may use; those that a killed lab left there are tidied. Empty where there is none."""
    try:
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
        own = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
    except OSError:
        return {}
    paths = {controller: path for _, names, path in own for controller in names.split(",")}
    places: dict[str, str] = {}
    for mount in mounts:
        root, point = mount[3], Path(mount[4])
        kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
        for controller in _CONTROLLERS:
            if kind == "cgroup" and controller in options:
                found = _version_1(_below(point, root, paths.get(controller, "")))
            elif kind == "cgroup2":
                found = _version_2(_below(point, root, paths.get("", "")), point, controller)
            else:
                continue
            if found is not None:
                places[controller] = str(found)
    for place in set(places.values()):
        _tidy(Path(place))
    return places


class Group:
    """The group of one supervisor, in each place that it needs. Every method does what it can and never raises."""

    def __init__(self, places: Places, pid: int) -> None:
        self._places, self._pid = dict(places), pid
        self._folders: dict[str, Path] = {}

    @property
    def counts_processes(self) -> bool:
        return "pids" in self._folders

    @property
    def counts_memory(self) -> bool:
        return "memory" in self._folders

    def limit_processes(self, most: int | None) -> None:
        """Beside the supervisor. 0: nothing can be forked any more."""
        if self.counts_processes or (most and self._join("pids")):
            _write(self._folders["pids"] / "pids.max", "max" if most is None else str(most + 1 if most else 0))

    def limit_memory(self, most: int | None) -> None:
        """Bytes; a limit below what is used now cannot be set in version 1, and then the old one stays."""
        if not self.counts_memory and (most is None or not self._join("memory")):
            return
        for limit, _ in _MEMORY_FILES:
            if (file := self._folders["memory"] / limit).exists():
                _write(file, "max" if most is None and limit == "memory.max" else str(-1 if most is None else most))

    def refusals(self) -> int:
        """How often a fork was refused, ever."""
        return _count(self._folders["pids"] / "pids.events", "max") if self.counts_processes else 0

    def memory_kills(self) -> int:
        """How many processes were killed for the group's memory, ever."""
        if not self.counts_memory:
            return 0
        return sum(_count(self._folders["memory"] / events, "oom_kill") for _, events in _MEMORY_FILES)

    def _join(self, controller: str) -> bool:
        """At its first need; a place that fails once is given up."""
        place = self._places.pop(controller, None)
        if place is None:
            return False
        folder = Path(place) / f"{_PREFIX}{self._pid}"
        try:
            folder.mkdir(exist_ok=True)
            if str(self._pid) not in _read(folder / "cgroup.procs").split():
                (folder / "cgroup.procs").write_text(str(self._pid))
        except OSError:
            return False
        self._folders[controller] = folder
        return True


def remove_group(places: Places, pid: int) -> None:
    """Take away the group of a supervisor that is gone, with whatever is still in it."""
    for place in set(places.values()):
        folder = Path(place) / f"{_PREFIX}{pid}"
        _write(folder / "cgroup.kill", "1")  # of version 2; elsewhere the fork server, its ancestor, has killed them
        for _ in range(_REMOVAL_TRIES):
            try:
                folder.rmdir()
            except FileNotFoundError:
                break
            except OSError:  # what was killed is still leaving
                time.sleep(0.005)
            else:
                break


def _below(point: Path, root: str, path: str) -> Path:
    """Where a group's path is in a mount that may show a part of the tree only."""
    return point / path.removeprefix(root if root != "/" else "").lstrip("/")


def _version_1(own: Path) -> Path | None:
    return own if _writable(own) else None


def _version_2(own: Path, point: Path, controller: str) -> Path | None:
    """The own group where it passes the controller on (only the root may, having processes); else the one above it,
    unless that would free the agents of a limit that binds the notebook."""
    for folder in (own, own.parent):
        if folder != own and (own == point or not _is_unlimited(own)):
            return None
        if controller in _read(folder / "cgroup.subtree_control").split() and _writable(folder):
            return folder
    return None


def _is_unlimited(folder: Path) -> bool:
    return all(_read(folder / name).split(" ")[0] in ("", free) for name, free in _UNLIMITED.items())


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def _tidy(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(_PREFIX)).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _count(file: Path, name: str) -> int:
    """A number of a file that has one per line, after its name."""
    fields = dict(line.split(" ", 1) for line in _read(file).splitlines() if " " in line)
    return int(fields.get(name, 0))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _write(file: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        file.write_text(text)
