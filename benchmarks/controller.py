"""What the local controller costs: rollouts per second, the price of supervision, and how soon the store knows.

    python benchmarks/controller.py --json

Agents do nothing, so that all there is is ours. Store, fork server, supervisors and processes are real; only the
gateway's credentials are made up.

* `rollouts_per_s`: 1,000 queued rollouts of a Python agent whose module (numpy) is preloaded, from the first submission
  to the last terminal record; `rollouts_per_cpu_s`: the same over the processor time of everything that took part,
  which says more on a machine that does other work as well.
* `supervise_core_share`: processor time of the controller, the fork server and 500 supervisors over ten seconds in
  which 500 agents sleep, as a share of one core. It includes the control groups' accounts, where there are any.
* `state_change_ms`: the longest time from what an agent did (its first line; its end) until a subscriber of the store
  knew of it, over 30 rollouts one at a time; `state_change_p50_ms`: the median.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from lightning_lab.controller import Controller
from lightning_lab.harnesses import Harness, harness
from lightning_lab.records import Rollout, RolloutState, Run, Sampling, Task
from lightning_lab.store import Store


@dataclass(frozen=True)
class Access:
    url: str
    key: str


class Credentials:
    """A key for everyone, to a gateway that nobody calls."""

    def open_rollout(self, rollout_id: str, *, attempt: int = 1, sampling: Sampling | None = None) -> Access:
        return Access(f"http://127.0.0.1:9/rollout/{rollout_id}", f"key-of-{rollout_id}")

    def close_rollout(self, rollout_id: str) -> None:
        pass


class Bench:
    def __init__(self, folder: Path, concurrency: int) -> None:
        self.store = Store(folder / "store.sqlite")
        self.store.put_run(Run(id="run", kind="single", state="running", settings={}, created_at=time.time())).result()
        self.controller = Controller(self.store, Credentials(), folder / "rollouts", concurrency=concurrency)
        self.controller.start()
        self._made = 0

    def submit(self, agent: Harness) -> Any:
        self._made += 1
        rollout = Rollout(
            id=f"r-{self._made:05}",
            run_id="run",
            group_id="g",
            task=Task(id="t", prompt="p"),
            harness=agent.info,
            mode="single",
            state=RolloutState.QUEUING,
        )
        return self.controller.submit(rollout, agent, None)

    def close(self) -> None:
        self.controller.close()
        self.store.close()


def cpu_s() -> float:
    """Processor time of this process and of all below it, those that have ended included."""
    me = psutil.Process()
    times = [each.cpu_times() for each in [me, *me.children(recursive=True)]]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


def throughput(folder: Path, rollouts: int) -> dict[str, float]:
    @harness(preload=["numpy"])
    def trivial(task: Task) -> str:
        return "done"

    bench = Bench(folder, concurrency=4 * (os.cpu_count() or 1))
    wait([bench.submit(trivial) for _ in range(20)])
    began, cpu = time.perf_counter(), cpu_s()
    done = [future.result() for future in [bench.submit(trivial) for _ in range(rollouts)]]
    took, spent = time.perf_counter() - began, cpu_s() - cpu
    assert {rollout.outcome for rollout in done} == {"completed"}
    bench.close()
    return {"rollouts_per_s": rollouts / took, "rollouts_per_cpu_s": rollouts / spent}


def supervision(folder: Path, live: int, seconds: float) -> dict[str, float]:
    @harness(timeout_s=3600)
    def asleep(task: Task) -> None:
        time.sleep(3600)

    bench = Bench(folder, concurrency=live)
    for _ in range(live):
        bench.submit(asleep)
    while sum(rollout.agent_started_at is not None for rollout in bench.store.rollouts("run")) < live:
        time.sleep(1.0)
    time.sleep(2.0)
    cpu = cpu_s()
    began = time.perf_counter()
    time.sleep(seconds)
    share = (cpu_s() - cpu) / (time.perf_counter() - began)
    bench.close()
    return {"supervise_core_share": share}


def state_changes(folder: Path, rollouts: int) -> dict[str, float]:
    """Each agent says when it did something, by the machine's clock, which the subscriber reads too."""

    @harness
    def telling(task: Task) -> float:
        time.sleep(0.05)
        return time.time()

    bench = Bench(folder, concurrency=1)
    told: dict[str, list[float]] = {}
    heard = threading.Event()

    def note(events: Any) -> None:
        now = time.time()
        for event in events:
            told.setdefault(event.subject, []).append(now)
        heard.set()

    bench.submit(telling).result()
    stop = bench.store.subscribe(note)
    late: list[float] = []
    for _ in range(rollouts):
        final = bench.submit(telling).result()
        while len(told.get(final.id, ())) < 4:  # queued, running, begun, ended
            heard.wait(1.0)
            heard.clear()
        _, _, begun, ended = told[final.id][:4]
        late += [begun - final.agent_started_at, ended - float(final.output)]
    stop()
    bench.close()
    late.sort()
    return {"state_change_ms": 1000 * late[-1], "state_change_p50_ms": 1000 * late[len(late) // 2]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (the default)")
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--live", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, part) for part in ("throughput", "supervision", "changes")]
        for folder in folders:
            folder.mkdir()
        measured = {
            **throughput(folders[0], options.rollouts),
            **supervision(folders[1], options.live, 10.0),
            **state_changes(folders[2], 30),
        }
    print(json.dumps({name: round(value, 3) for name, value in measured.items()}))


if __name__ == "__main__":
    main()
