"""What one rollout may use of this machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_GB = 10**9
_OOM_SCORE = 500
"""Where the whole machine runs out of memory, the kernel is to choose an agent before the notebook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one rollout may use of this machine; its grader has as much again. None: as much as there is.

    A rollout that goes over ``processes`` or ``disk_gb`` is ended as an ``agent_error`` that says so; one that goes
    over ``memory_gb`` as ``oom``. Raises `ValueError` for a limit that leaves nothing.
    """

    processes: int | None = 1024
    """Processes and threads at one time."""
    memory_gb: float | None = None
    """Of all its processes together, in 10⁹ bytes."""
    disk_gb: float | None = 10.0
    """Of its working directory, HOME and TMPDIR together, in 10⁹ bytes; also the size of any one file."""
    open_files: int | None = 4096
    """Of each process."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value > 0:
                raise ValueError(f"Limits({name}={value!r}): it must be above 0; None means no limit.")


def for_spec(limits: Limits) -> dict[str, Any]:
    """The limits as a spec of a process carries them: sizes in bytes."""
    memory, disk = (None if size is None else int(size * _GB) for size in (limits.memory_gb, limits.disk_gb))
    return {"processes": limits.processes, "memory": memory, "disk": disk, "open_files": limits.open_files}


def take_on(limits: Mapping[str, Any]) -> None:
    """Bind this process, and what it starts, by those limits that the kernel keeps for each process.

    ``RLIMIT_NPROC`` is none of them: it counts all processes of the user, and does not bind root. Neither is
    ``RLIMIT_AS``: node, torch and Java reserve far more addresses than they use.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, wanted in ((resource.RLIMIT_FSIZE, limits["disk"]), (resource.RLIMIT_NOFILE, limits["open_files"])):
        if wanted is not None:
            hard = resource.getrlimit(kind)[1]
            value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (value, value))
    score = os.open("/proc/self/oom_score_adj", os.O_RDWR)
    if int(os.read(score, 16)) < _OOM_SCORE:  # to lower it would need a privilege
        os.write(score, b"%d" % _OOM_SCORE)
    os.close(score)
