"""The files that a task gives its agent: ``task.fields["files"]``.

Either a mapping, relative path → text, or the path of a folder (a repository, say) whose content is copied.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from lightning_lab.records import Task
from lightning_lab.tasks.task_set import TaskError


def check_files(task: Task) -> None:
    """Raises `TaskError` unless the task's files, if it has any, can be put into a working directory."""
    files = task.fields.get("files")
    if isinstance(files, str):
        if not Path(files).expanduser().is_dir():
            raise TaskError(f"Task {task.id}: files names {files!r}, which is no folder on this machine.")
    elif isinstance(files, Mapping):
        for path, text in files.items():
            _check_file(task, path, text)
    elif files is not None:
        raise TaskError(
            f"Task {task.id}: the field files says what the agent finds in its working directory, as a mapping of "
            f"paths to texts or as a folder's path; here it is {type(files).__name__}. "
            "Rename the column if it is something else."
        )


def put_files(task: Task, folder: Path) -> None:
    """Put the task's files into ``folder``, which exists. Links stay links. Raises `OSError`, `shutil.Error`."""
    files = task.fields.get("files")
    if isinstance(files, str):
        shutil.copytree(Path(files).expanduser(), folder, symlinks=True, dirs_exist_ok=True)
        return
    for path, text in (files or {}).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _check_file(task: Task, path: Any, text: Any) -> None:
    if not isinstance(text, str):
        raise TaskError(f"Task {task.id}: the file {path!r} is text, not {type(text).__name__}.")
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or PurePosixPath(path).is_absolute() or "\0" in path:
        raise TaskError(f"Task {task.id}: the file {path!r} lies outside the working directory; use relative paths.")
