"""Does the quickstart learn? Runs the notebook's own harness, tasks and settings, once per seed, with a control.

    python benchmarks/quickstart.py --seeds 5 --json
    python benchmarks/quickstart.py --seeds 1 --ranks 2 --json    # learned by verl on two ranks (docs/engines.md)

Per seed: held-out reward at temperature 1 before and after training (`start`, `end`), the seconds of training, the
updates made, and what a control gains whose rewards are permuted across each batch (`control_gain`). Two trainings draw
rollouts of their own, so one of each kind says little of their difference: that verl learns what the embedded learner
learns from the same rollouts is shown by tests/engines/test_engines_verl_quickstart.py.
Progress goes to stderr; stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.interactiveshell import InteractiveShell

import lightning_lab as ll

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "quickstart.ipynb"


def notebook_names() -> dict[str, Any]:
    """Run the notebook's `setup` cells (imports, harness, tasks, settings) and return what they define."""
    shell = InteractiveShell.instance()
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if "setup" in cell.metadata.get("tags", []):
            shell.run_cell(cell.source).raise_error()
    return dict(shell.user_ns)


async def train(names: dict[str, Any], seed: int, *, ranks: int = 0, **settings: Any) -> dict[str, float]:
    """One training run of the notebook with this seed and further settings of `Trainer`."""
    learner = ll.Learner.verl(ranks) if ranks else None
    with tempfile.TemporaryDirectory() as runs:
        lab = ll.Lab(policy=ll.Policy.torch("quickstart", seed=seed, learner=learner), runs=runs)
        try:
            trainer = ll.Trainer(
                lab,
                names["solver"],
                names["train"],
                names["exact"],
                n=names["N"],
                groups=names["GROUPS"],
                learning_rate=names["LEARNING_RATE"],
                seed=seed,
                **settings,
            )
            start = await trainer.evaluate(names["EVALUATED"])
            began = time.monotonic()
            run = trainer.fit(steps=names["STEPS"])
            await run
            seconds = time.monotonic() - began
            end = await trainer.evaluate(names["EVALUATED"])
            steps = run.steps()
            return {
                "start": start.mean,
                "end": end.mean,
                "seconds": seconds,
                "updates": int((steps["skipped"] == "").sum()),
                "staleness": float(steps["staleness"].mean()),
            }
        finally:
            lab.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=0, help="of verl's learner; 0: the embedded one learns")
    parser.add_argument("--steps", type=int, help="by default those of the notebook")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout (always the case)")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    names = notebook_names()
    names["STEPS"] = arguments.steps or names["STEPS"]
    seeds = []
    for seed in range(arguments.seeds):
        learned = asyncio.run(train(names, seed, shuffle_rewards=False, ranks=arguments.ranks))
        control = asyncio.run(train(names, seed, shuffle_rewards=True, ranks=arguments.ranks))
        seeds.append({"seed": seed, **learned, "control_gain": control["end"] - control["start"]})
        print(json.dumps(seeds[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"seeds": seeds}))


if __name__ == "__main__":
    main()
