"""Record the quickstart twice, with one setting changed: what the pictures of charts and of Compare are taken of.

    python scripts/record_quickstart.py      # about seven minutes on two cores

`notebooks/recorded_quickstart.llab` is what binder opens; `notebooks/recorded_slower.llab` has the same agent, tasks
and seed, and a tenth of the learning rate. Both are trained by the notebook's own harness, grader and settings.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning_lab as ll

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))
from quickstart import notebook_names  # noqa: E402

STEPS, HELD_OUT, EVERY = 24, 64, 8
LEARNING_RATES = {"recorded_quickstart.llab": 3e-4, "recorded_slower.llab": 3e-5}


async def record(names: dict[str, Any], learning_rate: float, target: Path) -> None:
    with tempfile.TemporaryDirectory() as runs:
        lab = ll.Lab(policy=ll.Policy.torch("quickstart"), runs=runs)
        try:
            trainer = ll.Trainer(
                lab,
                names["solver"],
                names["train"],
                names["exact"],
                n=names["N"],
                groups=names["GROUPS"],
                learning_rate=learning_rate,
                held_out=names["held"][:HELD_OUT],
                eval_every=EVERY,
            )
            run = trainer.fit(steps=STEPS)
            await run
            print(run.export(target))
        finally:
            lab.close()


if __name__ == "__main__":
    defined = notebook_names()
    for name, rate in LEARNING_RATES.items():
        asyncio.run(record(defined, rate, ROOT / "notebooks" / name))
