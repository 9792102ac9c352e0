"""The evidence notebook: a tiny version runs from start to end, and the stored runs give the numbers that it shows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "notebooks" / "rollout_vs_sample.ipynb"
TINY = """
SEEDS, STEPS, N, GROUPS, HELD_OUT = range(1), 2, 4, 1, 4
LOSSES, RESULTS = ["rollout", "sample"], "tiny.jsonl"
"""


@pytest.mark.timeout(600)
def test_a_tiny_version_runs_headless(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = TINY
    client = NotebookClient(notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()

    runs = [json.loads(line) for line in (tmp_path / "tiny.jsonl").read_text().splitlines()]
    assert [run["arm"] for run in runs[:2]] == ["warm", "rollout · rollout"] and len(runs) == 5
    for run in runs[1:]:
        steps = {name: [row[i] for row in run["steps"]["data"]] for i, name in enumerate(run["steps"]["columns"])}
        assert len(steps["reward"]) == 2 and len(run["held_out"]["reward"]) == 4
        if run["arm"] in ("rollout · rollout", "sample · sample"):
            assert steps["net_push"] == pytest.approx([0.0, 0.0], abs=1e-3)
    kinds = [kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert kinds.count("application/vnd.plotly.v1+json") == 2


@pytest.mark.timeout(600)
def test_the_stored_runs_give_the_numbers_that_the_notebook_shows(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    shutil.copy(NOTEBOOK.with_suffix(".jsonl"), results)
    script = [sys.executable, ROOT / "benchmarks" / "rollout_vs_sample.py", "--json", "--results", results]
    printed = subprocess.run(script, capture_output=True, text=True, timeout=500, check=True, env=_environment())
    numbers = json.loads(printed.stdout.splitlines()[-1])
    assert results.read_text() == NOTEBOOK.with_suffix(".jsonl").read_text(), "no run was missing"
    shown = "".join(
        str(output.get("data", {}).get("text/html", ""))
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells
        for output in cell.get("outputs", [])
    )
    for frame in numbers.values():
        for line in frame.values():
            for name in ("reward", "first try", "entropy"):
                assert f"{line[name]:.3f} ± {line['± ' + name]:.3f}" in shown


def _environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1"}
