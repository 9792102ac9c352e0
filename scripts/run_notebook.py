"""Runs a notebook headless, cell by cell, and saves it with its outputs: run_notebook.py SOURCE TARGET."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError


def main(source: Path, target: Path) -> None:
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": source.parent}}
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type != "code":
                    continue
                began = time.monotonic()
                client.execute_cell(cell, index)
                print(f"[{time.monotonic() - began:6.1f} s] {first_line(cell.source)}", flush=True)
                show_text(cell)
    except CellExecutionError as error:
        sys.exit(f"A cell failed; what ran so far is in {target}\n{error}")
    finally:
        nbformat.write(notebook, target)
    print(f"Done in {time.monotonic() - started:.0f} s. Open {target} to see every output.")


def first_line(source: str) -> str:
    return source.strip().splitlines()[0][:90]


def show_text(cell: nbformat.NotebookNode) -> None:
    """The plain-text form of a cell's result, as a person without a browser reads it."""
    for output in cell.outputs:
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        for line in text.strip().splitlines()[:12]:
            print(f"           {line[:140]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
