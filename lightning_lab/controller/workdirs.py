"""A rollout's private folders: made before it starts, copied for the grader, removed when it is over."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightning_lab.records import Task


@dataclass(frozen=True, slots=True)
class Workdir:
    """``root`` holds all of it; only the owner can look inside."""

    root: Path

    @property
    def work(self) -> Path:
        """Where the agent starts."""
        return self.root / "work"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def copy(self) -> Path:
        """The grader's copy of ``work``."""
        return self.root / "copy"

    @property
    def grading(self) -> Path:
        """Where the grader starts: empty, so that nothing an agent wrote is imported by accident."""
        return self.root / "grading"

    @classmethod
    def create(cls, parent: Path, rollout_id: str, attempt: int) -> Workdir:
        made = cls(parent / f"{rollout_id}-{attempt}")
        made.root.mkdir(mode=0o700)
        for folder in (made.work, made.home, made.temporary):
            folder.mkdir()
        return made

    def furnish_home(self, files: Mapping[str, str]) -> None:
        """Write what the harness wants in the agent's home directory; paths are relative to it."""
        for path, text in files.items():
            target = self.home / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    def write_task(self, task: Task) -> None:
        """``task.json`` for a command: all of the task but the answer, which an agent must not find."""
        content = {"id": task.id, "prompt": task.prompt, "source": task.source, "fields": dict(task.fields)}
        (self.work / "task.json").write_text(json.dumps(content, default=str, ensure_ascii=False), encoding="utf-8")

    def copy_for_grader(self) -> None:
        """Copy what the agent left; links stay links, sockets and pipes are left out. Raises `OSError`.

        What the agent put in the place of the copy goes first: it neither passes for one nor keeps the grader away.
        A link in the place of the directory itself is refused: it would have any folder of this user copied.
        """
        if self.work.is_symlink():
            raise OSError("the agent put a link in its place")
        for place in (self.grading, self.copy):
            _remove(place)
        self.grading.mkdir()
        try:
            _copy(self.work, self.copy)
        except RecursionError as error:
            raise OSError("its folders are nested too deeply") from error

    def remove(self) -> None:
        """Delete everything, also folders that the agent locked or nested without end."""
        _remove(self.root)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, "--", str(path)], check=False, capture_output=True)


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    source.chmod(0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            kind = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(kind):
                (target / entry.name).symlink_to(os.readlink(entry.path))  # noqa: PTH115 - keeps undecodable names
            elif stat.S_ISDIR(kind):
                _copy(Path(entry.path), target / entry.name)
            elif stat.S_ISREG(kind):
                _copy_file(Path(entry.path), target / entry.name, kind)


def _copy_file(source: Path, target: Path, mode: int) -> None:
    if not mode & stat.S_IRUSR:
        source.chmod(mode | stat.S_IRUSR)
    shutil.copyfile(source, target)
    target.chmod(stat.S_IMODE(mode) | stat.S_IRUSR)
