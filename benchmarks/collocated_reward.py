"""Does the collocated schedule learn as well as the synchronous one? The quickstart, once per seed with each.

    python benchmarks/collocated_reward.py --json

Both schedules have the notebook's harness, tasks, settings, seeds and number of optimiser steps. Prints one JSON
object: each seed's held-out reward at temperature 1 before and after, the mean over seeds of the paired difference
(collocated - sync) and its 95 % interval (Student's t). Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import Any

import numpy as np
from quickstart import notebook_names, train

SCHEDULES: dict[str, dict[str, Any]] = {
    "sync": {"schedule": "sync"},
    "collocated": {"schedule": "collocated", "pause": "interrupt"},
}
T975 = [np.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26]
"""Student's t at 0.975 by degrees of freedom."""


def paired_difference(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and 95 % interval over seeds of (collocated - sync)."""
    differences = np.array([seed["collocated"]["end"] - seed["sync"]["end"] for seed in seeds])
    half = T975[len(differences) - 1] * differences.std(ddof=1) / np.sqrt(len(differences))
    return {"mean": differences.mean(), "interval": [differences.mean() - half, differences.mean() + half]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, choices=range(2, 11), help="2 to 10")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout (always the case)")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    names = notebook_names()
    seeds: list[dict[str, Any]] = []
    for seed in range(arguments.seeds):
        made = {name: asyncio.run(train(names, seed, **settings)) for name, settings in SCHEDULES.items()}
        seeds.append({"seed": seed, **made})
        print(json.dumps(seeds[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"seeds": seeds, "held_out_difference": paired_difference(seeds)}))


if __name__ == "__main__":
    main()
