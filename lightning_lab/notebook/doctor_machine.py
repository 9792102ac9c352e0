"""The doctor's look at the machine and the cluster: versions, GPUs, memory, disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from lightning_lab.cluster import JobError, Workers, connect
from lightning_lab.notebook.finding import Finding
from lightning_lab.notebook.recipes import Recipe
from lightning_lab.planning import DoesNotFitError
from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.engines.installing import located
from lightning_lab.policy.engines.versions import SUPPORTED

GIB = 1 << 30
LEAST_MEMORY_GIB, LEAST_DISK_GIB = 4.0, 5.0
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "fuse.ceph", "gpfs", "beegfs", "9p"})
_BUSY_MIB = 1024
"""A GPU that holds more than this serves somebody."""


def versions() -> Finding:
    """What is installed against the ranges that this package declares."""
    wrong = []
    for line in metadata.requires("lightning-lab") or ():
        wanted = Requirement(line)
        found = _installed(wanted.name)
        if found and not wanted.specifier.contains(found, prereleases=True):
            wrong.append(f"{wanted.name} {found} (wanted: {wanted.specifier})")
    if wrong:
        said, action = (
            f"outside of the supported range: {', '.join(sorted(set(wrong)))}",
            "pip install -U lightning-lab",
        )
        return Finding(name="versions", level="problem", said=said, action=action)
    return Finding(name="versions", level="ok", said="within the supported ranges")


def gpus() -> Finding:
    """As the driver sees them, and whether torch sees them too. Needs no torch."""
    found = _nvidia_smi()
    if not found:
        return Finding(name="GPUs", level="note", said="none; the embedded policy works on the CPU")
    said = "; ".join(f"{name}, {total / 1024:.0f} GiB, {used / 1024:.1f} in use" for name, total, used in found)
    if find_spec("torch") is not None:
        import torch

        if not torch.cuda.is_available():
            action = "Install a CUDA build of torch: pip install torch (without the CPU index)."
            return Finding(name="GPUs", level="problem", said=f"{said}; but torch sees none of them", action=action)
    busy = sum(used > _BUSY_MIB for _, _, used in found)
    if busy:
        action = "Choose free ones with CUDA_VISIBLE_DEVICES, or end what uses them (nvidia-smi)."
        return Finding(name="GPUs", level="note", said=f"{said}; {busy} in use by somebody", action=action)
    return Finding(name="GPUs", level="ok", said=said)


def memory() -> Finding:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    available = _available_gib() or free
    said = f"{available:.1f} GiB available"
    if available < LEAST_MEMORY_GIB:
        action = "Close other programs, or lower concurrency (ll.Lab(…, concurrency=…))."
        return Finding(name="memory", level="note", said=said, action=action)
    return Finding(name="memory", level="ok", said=said)


def disk(runs: Path) -> Finding:
    """Room for runs, and whether the live store would lie on a network file system."""
    nearest = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    free = shutil.disk_usage(nearest).free / GIB
    kind = file_system(nearest, Path("/proc/mounts").read_text(encoding="utf-8", errors="replace"))
    said = f"{free:.1f} GiB free at {nearest} ({kind or 'unknown file system'})"
    if kind in NETWORK_FILE_SYSTEMS:
        action = 'Keep runs on a disk of the machine that trains: ll.Lab(…, runs="/local/runs").'
        said += "; the live store needs a local disk, because other machines cannot share its write-ahead log"
        return Finding(name="disk", level="problem", said=said, action=action)
    if free < LEAST_DISK_GIB:
        return Finding(name="disk", level="note", said=said, action="Make room, or choose another runs folder.")
    return Finding(name="disk", level="ok", said=said)


def ray_cluster(address: str, workers: Workers) -> Finding:
    """Whether the cluster answers and has what is asked for."""
    try:
        nodes = connect(address).nodes()
        workers.check(nodes)
    except JobError as error:
        what, _, action = str(error).partition(". ")
        return Finding(name="cluster", level="problem", said=what, action=action)
    total = {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}
    said = f"{address}: {len(nodes)} machines, {total['CPU']:g} CPUs, {total['GPU']:g} GPUs"
    return Finding(name="cluster", level="ok", said=said)


def engine(name: str, *, needed: bool = False) -> Finding:
    """Whether an engine's environment is there, in a version of the table."""
    level: Literal["note", "problem"] = "problem" if needed else "note"
    try:
        found = located(name)
    except PolicyError as error:
        what, _, action = str(error).partition(". ")
        return Finding(name=name, level=level, said=what, action=action)
    return Finding(name=name, level="ok", said=f"{found.version} ({SUPPORTED[name]}), {found.python}")


def recipe_checks(recipe: Recipe) -> list[Callable[[], Finding]]:
    """What a recipe needs of the machine: engines, and memory of its GPUs."""
    checks: list[Callable[[], Finding]] = []
    for name in sorted({recipe.policy.kind, recipe.learner.kind if recipe.learner else ""} & set(SUPPORTED)):
        checks.append(lambda name=name: engine(name, needed=True))  # type: ignore[misc]
    checks.append(lambda: memory_plan(recipe))
    return checks


def memory_plan(recipe: Recipe) -> Finding:
    plan = recipe.plan()
    said = str(plan).splitlines()[0]
    try:
        plan.check()
    except DoesNotFitError as error:
        return Finding(name="memory plan", level="problem", said=said, action=str(error).rpartition("GiB. ")[2])
    return Finding(name="memory plan", level="ok", said=said)


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that holds ``path``, by the text of ``/proc/mounts``; empty if none does."""
    best, kind = "", ""
    for line in mounts.splitlines():
        parts = line.split()
        point = parts[1].encode().decode("unicode_escape") if len(parts) > 2 else ""
        if point and path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind


def _nvidia_smi() -> Sequence[tuple[str, float, float]]:
    """(name, MiB, MiB in use) of each GPU; empty without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    asked = [program, "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30)
    lines = [line.rsplit(",", 2) for line in done.stdout.strip().splitlines()] if done.returncode == 0 else []
    return [(name.strip(), float(total), float(used)) for name, total, used in lines]


def _available_gib() -> float | None:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines() if Path("/proc/meminfo").exists() else []
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return int(found) * 1024 / GIB if found else None


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
