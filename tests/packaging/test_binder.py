"""binder/postBuild from a clean copy: the recorded run opens without torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import create_environment


@pytest.mark.timeout(900)
def test_post_build_and_recorded_run_without_torch(clean_copy: Path, tmp_path: Path) -> None:
    environment = create_environment(tmp_path / "v")
    environment.run(
        "python", "-m", "pip", "install", "--quiet", "--no-compile", "-r", "binder/requirements.txt", cwd=clean_copy
    )
    environment.run("bash", "binder/postBuild", cwd=clean_copy)
    environment.run(
        "python", "scripts/run_notebook.py", "notebooks/recorded_run.ipynb", "build/recorded_run.ipynb", cwd=clean_copy
    )
