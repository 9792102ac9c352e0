"""notebooks/retokenization.ipynb runs, says what it said when it was saved, and is legible without a kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from notebook_kernels import REPOSITORY

NOTEBOOK = REPOSITORY / "notebooks" / "retokenization.ipynb"


def shown(notebook: nbformat.NotebookNode) -> list[tuple[str, ...]]:
    """What each code cell shows: printed text, and whether there is a table, a figure or an error."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [tuple(sorted(_kind(output) for output in cell.outputs)) for cell in cells]


def _kind(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return str(output.text)
    return output.output_type if output.output_type == "error" else " ".join(sorted(output.data))


@pytest.mark.timeout(400)
def test_it_runs_headless_and_shows_what_was_saved(tmp_path: Path) -> None:
    target = tmp_path / "out.ipynb"
    command = [sys.executable, str(REPOSITORY / "scripts" / "run_notebook.py"), str(NOTEBOOK), str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    saved, ran = nbformat.read(NOTEBOOK, as_version=4), nbformat.read(target, as_version=4)
    assert shown(ran) == shown(saved)
    assert shown(ran)[-1] == ("35 prompts. Sampled ids were put back in 13; the text is the same in 35.\n",)
    tables = [_tables(notebook) for notebook in (saved, ran)]
    assert tables[0] == tables[1] and len(tables[0]) == 7


def _tables(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """The words of every table, without pandas' random names for cells."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    html = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    return [re.sub(r"<style.*?</style>|<[^>]+>", " ", table, flags=re.DOTALL).split() for table in html]


def test_it_is_small_and_ends_with_what_to_take_away() -> None:
    assert NOTEBOOK.stat().st_size < 500_000
    saved = nbformat.read(NOTEBOOK, as_version=4)
    assert "begin a new sample" in saved.cells[-1].source.splitlines()[-1]
    outputs = [kinds for kinds in shown(saved) if kinds]
    assert len(outputs) == 9 and ("application/vnd.plotly.v1+json text/plain",) in outputs
    assert not any("error" in kinds for kinds in outputs)
