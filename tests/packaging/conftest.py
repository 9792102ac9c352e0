"""A clean copy of the repository and environments of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Environment:
    """A virtual environment; commands see its `bin` first and nothing of the developer's PYTHONPATH."""

    path: Path

    def run(self, *command: str, cwd: Path, timeout: float = 600) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        environment["PATH"] = f"{self.path / 'bin'}{os.pathsep}{environment['PATH']}"
        environment["HF_HUB_OFFLINE"] = "1"
        result = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
        )
        assert result.returncode == 0, f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout[-4000:]}"
        return result.stdout


def create_environment(path: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", path], check=True)
    return Environment(path)


@pytest.fixture(scope="session")
def clean_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git would hand to a new user: the tracked files as they are in the working tree."""
    target = tmp_path_factory.mktemp("clone") / "lightning-lab"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if not (ROOT / name).exists():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    return target
