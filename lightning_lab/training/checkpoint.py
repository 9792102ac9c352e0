"""Checkpoints: the policy's own files and the loop's place, written beside and renamed, so that none is ever half."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightning_lab.policy.base import Learner
from lightning_lab.records import SCHEMA_VERSION

STATE_FILE = "loop.json"
POLICY_FOLDER = "policy"
_NAME = re.compile(r"step-(\d{8})")


class CheckpointError(RuntimeError):
    """The checkpoint cannot be written or read; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """Where the loop stands between two steps."""

    step: int
    """Steps that are done."""
    cursor: int
    """Tasks that were taken from the schedule; with the seed it fixes every later choice."""
    version: int
    """The policy version that was saved."""
    seed: int
    store_seq: int
    """The store's event of the last step that the checkpoint holds; 0 before the first."""
    run_id: str
    schema_version: int = SCHEMA_VERSION


def save_checkpoint(policy: Learner, state: LoopState, root: Path, *, keep: int) -> Path:
    """Write ``root/step-…``, complete or not at all, and delete all but the newest ``keep``."""
    final = root / f"step-{state.step:08d}"
    partial = root / f".{final.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / POLICY_FOLDER).mkdir(parents=True)
        policy.save(partial / POLICY_FOLDER)
        (partial / STATE_FILE).write_text(json.dumps(asdict(state)))
        _sync(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync_directory(root)
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint {final} cannot be written ({error}). Free space or check rights."
        ) from error
    for old in _complete(root)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def latest_checkpoint(root: Path) -> Path | None:
    """The newest complete checkpoint, or None."""
    complete = _complete(root)
    return complete[-1] if complete else None


def load_checkpoint(policy: Learner, checkpoint: Path, *, run_id: str) -> LoopState:
    """Load the policy and return the loop's place. Raises `CheckpointError`, which says how to go on without it."""
    try:
        state = _read_state(checkpoint)
        if state.run_id != run_id:
            raise ValueError(f"it belongs to the run {state.run_id}")
        policy.load(checkpoint / POLICY_FOLDER)
    except Exception as error:
        why = str(error).rstrip(".")
        raise CheckpointError(f"{checkpoint} cannot be used: {why}. {_way_out(checkpoint)}") from error
    return state


def _read_state(checkpoint: Path) -> LoopState:
    """Raises OSError, ValueError or TypeError."""
    try:
        fields: dict[str, Any] = json.loads((checkpoint / STATE_FILE).read_text())
    except ValueError as error:
        raise ValueError(f"{STATE_FILE} is damaged ({error})") from error
    if not isinstance(fields, dict):
        raise TypeError(f"{STATE_FILE} holds no object")
    if fields.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"it has schema version {fields.get('schema_version')}, this Lightning Lab reads {SCHEMA_VERSION}. "
            "Open it with the version of lightning-lab that wrote it"
        )
    state = LoopState(**fields)
    if any(type(getattr(state, name)) is not int for name in ("step", "cursor", "version", "seed", "store_seq")):
        raise TypeError(f"{STATE_FILE} holds what is no number")
    return state


def _way_out(checkpoint: Path) -> str:
    """What a checkpoint that is of no use costs: the steps since the one before it."""
    earlier = [path.name for path in _complete(checkpoint.parent) if path.name < checkpoint.name]
    return f"Move that folder away to go on from {earlier[-1] if earlier else 'the first step'}."


def _complete(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name) and (path / STATE_FILE).is_file())


def _sync(folder: Path) -> None:
    """Bytes and names reach the disk before the rename makes them a checkpoint."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            _sync_directory(path)
    _sync_directory(folder)


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
