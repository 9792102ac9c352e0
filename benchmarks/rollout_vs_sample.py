"""Rollouts or samples? The numbers of notebooks/rollout_vs_sample.ipynb, from its own cells.

    python benchmarks/rollout_vs_sample.py --json              # the stored runs; makes those that are missing
    python benchmarks/rollout_vs_sample.py --json --seeds 3 --steps 6 --results /tmp/short.jsonl

stdout is one JSON object: `arms` has each arm's mean and half its 95 % interval over seeds, `differences` those of
the paired differences to the default arm. Each run that is made is one line of the results file.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.interactiveshell import InteractiveShell

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "rollout_vs_sample.ipynb"


def run_cells(parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the notebook's cells but for its figures, with these values for its parameters; what they define."""
    shell = InteractiveShell.instance()
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if {"parameters", "setup", "run"}.intersection(cell.metadata.get("tags", [])):
            shell.run_cell(cell.source, silent=True).raise_error()
        if "parameters" in cell.metadata.get("tags", []):
            shell.push(parameters)
    return dict(shell.user_ns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, help="how many; by default the notebook's")
    parser.add_argument("--steps", type=int, help="optimiser steps of a run")
    parser.add_argument("--held-out", type=int, help="held-out tasks")
    parser.add_argument("--results", type=Path, default=NOTEBOOK.with_suffix(".jsonl"))
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout (always the case)")
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    given = {"SEEDS": asked.seeds and range(asked.seeds), "STEPS": asked.steps, "HELD_OUT": asked.held_out}
    names = run_cells({name: value for name, value in given.items() if value} | {"RESULTS": str(asked.results)})
    frames = {name: json.loads(names[name].to_json(orient="index")) for name in ("arms", "differences")}
    print(json.dumps(frames))


if __name__ == "__main__":
    main()
