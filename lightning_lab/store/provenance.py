"""What a colleague needs to run it again: code, packages, machine. Every probe is bounded and may find nothing."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PROBE_TIMEOUT_S = 5.0
_DIFF_LIMIT = 256 * 1024


@functools.lru_cache(maxsize=1)
def package_lock() -> tuple[str, ...]:
    """``name==version`` of every installed distribution, sorted."""
    found = {(dist.metadata["Name"], dist.version) for dist in importlib.metadata.distributions()}
    return tuple(sorted((f"{name}=={version}" for name, version in found if name), key=str.lower))


def own_version() -> str:
    """Of the installed lightning-lab; empty where it runs from a bare checkout."""
    try:
        return importlib.metadata.version("lightning-lab")
    except importlib.metadata.PackageNotFoundError:
        return ""


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and uncommitted changes of tracked files; None outside a repository.

    ``diff`` holds at most 256 KiB; ``diff_truncated`` says whether that was all.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color")
    untracked = _git(folder, "ls-files", "--others", "--exclude-standard") or b""
    return {
        "commit": commit.decode().strip(),
        "diff": None if diff is None else diff[:_DIFF_LIMIT].decode(errors="replace"),
        "diff_truncated": diff is None or len(diff) > _DIFF_LIMIT,
        "untracked": untracked[:_DIFF_LIMIT].decode(errors="replace").splitlines(),
    }


def hardware() -> dict[str, Any]:
    """Processor, cores that this process may use, memory in bytes, GPUs, system and Python."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": _gpus(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    listed = _probe([program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    return [] if listed is None else listed.decode(errors="replace").strip().splitlines()


def _git(folder: Path, *arguments: str) -> bytes | None:
    program = shutil.which("git")
    return None if program is None else _probe([program, "-C", str(folder), *arguments])


def _probe(argv: Sequence[str]) -> bytes | None:
    """stdout, or None if the program fails or takes too long."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            env=environment,
            start_new_session=True,  # an interrupted cell must not interrupt the probe
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
