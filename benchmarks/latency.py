"""How quickly the lab reacts on this machine. Prints one JSON object.

    python benchmarks/latency.py --json

* `cell_ms`: round trip of a `1 + 1` cell in a real kernel while the quickstart trains in it (p50, p95, max), beside
  `idle_cell_ms`, the same in the same kernel before training; `cell_ratio` is p95 over p95.
* `first_line_ms`: from a queued rollout to the first line of agent code, openai-agents preloaded, one at a time.
* `import_s`: a cold `import lightning_lab`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

import lightning_lab as ll
from lightning_lab.controller import Controller
from lightning_lab.records import Rollout, RolloutState
from lightning_lab.store import Store

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "quickstart.ipynb"
TRAINING = """
lab = ll.Lab(policy=ll.Policy.torch("quickstart"), runs={runs!r})
run = ll.Trainer(lab, solver, train, exact, n=N, groups=GROUPS, learning_rate=LEARNING_RATE).fit(steps=1000)
"""


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50": statistics.median(ordered),
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
        "max": ordered[-1],
        "n": len(ordered),
    }


def cell_round_trips(client: BlockingKernelClient, seconds: float) -> list[float]:
    times: list[float] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        began = time.perf_counter()
        execute(client, "1 + 1")
        times.append((time.perf_counter() - began) * 1000)
        time.sleep(0.2)
    return times


def execute(client: BlockingKernelClient, source: str) -> None:
    reply = client.execute_interactive(source, timeout=120, output_hook=lambda message: None)
    if reply["content"]["status"] != "ok":
        raise RuntimeError("\n".join(reply["content"]["traceback"]))


def measure_cells(seconds: float) -> dict[str, Any]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        with tempfile.TemporaryDirectory() as runs:
            for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
                if "setup" in cell.metadata.get("tags", []):
                    execute(client, cell.source)
            idle = percentiles(cell_round_trips(client, seconds / 3))
            execute(client, TRAINING.format(runs=runs))
            execute(client, "import time\nwhile not len(run.steps()): time.sleep(0.2)")
            busy = percentiles(cell_round_trips(client, seconds))
            execute(client, "run.cancel(); lab.close()")
        return {"cell_ms": busy, "idle_cell_ms": idle, "cell_ratio": busy["p95"] / idle["p95"]}
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


@dataclass(frozen=True)
class Nowhere:
    """Credentials of rollouts that make no call."""

    url: str = "http://127.0.0.1:9"
    key: str = "none"

    def open_rollout(self, rollout_id: str, **_: Any) -> Nowhere:
        return self

    def close_rollout(self, rollout_id: str) -> None: ...


@ll.harness(preload=["agents"])
def nothing(task: Any) -> str:
    return "done"


def measure_first_line(rollouts: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store.sqlite")
        controller = Controller(store, Nowhere(), Path(folder) / "work")
        controller.start()
        try:
            waits = [first_line_ms(controller, index) for index in range(rollouts + 1)]
            return percentiles(waits[1:])  # the first one waits for the library's import
        finally:
            controller.close()
            store.close()


def first_line_ms(controller: Controller, index: int) -> float:
    task = ll.tasks.from_rows([{"prompt": f"task {index}", "answer": ""}])[0]
    rollout = Rollout(
        id=f"r-{index}",
        run_id="latency",
        group_id=f"g-{index}",
        task=task,
        harness=nothing.info,
        mode="single",
        state=RolloutState.QUEUING,
        created_at=time.time(),
    )
    ended = controller.submit(rollout, nothing, None).result(timeout=120)
    if ended.agent_started_at is None:
        raise RuntimeError(f"the agent did not start: {ended.error}")
    return (ended.agent_started_at - rollout.created_at) * 1000


def measure_import() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import lightning_lab"], check=True)
    bare = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (bare - began) - (time.perf_counter() - bare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30, help="how long cells are timed during training")
    parser.add_argument("--rollouts", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout (always the case)")
    arguments = parser.parse_args()
    result = {"import_s": measure_import(), "first_line_ms": measure_first_line(arguments.rollouts)}
    print(json.dumps(result | measure_cells(arguments.seconds)))


if __name__ == "__main__":
    main()
