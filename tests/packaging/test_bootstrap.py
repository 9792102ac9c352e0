"""scripts/bootstrap.py: what stages that run side by side, or were interrupted, leave of each other."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """With another environment than this one."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "scripts" / "bootstrap.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    venv = tmp_path / "venv"
    monkeypatch.setattr(made, "VENV", venv)
    monkeypatch.setattr(made, "BIN", venv / "bin")
    monkeypatch.setattr(made, "PYTHON", venv / "bin" / "python")
    return made


@pytest.mark.parametrize(("stage", "stays"), [("browser", True), ("sandbox", True), ("node", False)])
def test_an_environment_that_another_stage_begins_stays(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, stage: str, stays: bool
) -> None:
    bootstrap.VENV.mkdir()  # of this Python as soon as it has a library
    for name in ("find_browser", "find_sandbox", "find_node"):
        monkeypatch.setattr(bootstrap, name, lambda: None)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", stage])
    bootstrap.main()
    assert bootstrap.VENV.exists() == stays


def test_an_environment_that_was_left_half_way_is_finished(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bootstrap.VENV], check=True)
    monkeypatch.setattr(bootstrap, "pip", lambda *_: None)  # which would upgrade itself
    bootstrap.create_environment()
    subprocess.run([bootstrap.PYTHON, "-m", "pip", "--version"], check=True)
