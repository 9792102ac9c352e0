"""A lab that only counts, for `benchmarks/panel.py`: the real bridge, table, frames and requests, made-up rollouts.

Runs in the benchmark's kernel.
"""

from __future__ import annotations

import ctypes
import json
import threading
import time
from pathlib import Path
from typing import Any

from lightning_lab.notebook.bridge import Bridge
from lightning_lab.notebook.frames import Snapshot, rows_reply
from lightning_lab.notebook.kernel import KernelLink
from lightning_lab.notebook.requests import Reply, Requests
from lightning_lab.notebook.rows import RolloutRow, RolloutTable

PER_S = 100


class CountingLab:
    """What the bridge takes for a lab and for the feed of its run at once."""

    def __init__(self, kernel: KernelLink) -> None:
        self.table = RolloutTable()
        self.total = 0
        handlers = {"rows": self._rows, "hello": lambda _: {"schema": 1, "package": "0.1.0", "lab": "bench"}}
        kernel.serve(Requests(handlers).answer)
        self._bridge = Bridge(self, lambda frame: kernel.push(frame.header, frame.buffers))
        self._bridge.start()

    def feed(self) -> Any:
        return self

    def refresh(self) -> None:
        pass

    def snapshot(self, _: Any) -> Snapshot:
        run = {"id": "run", "kind": "fit", "state": "running", "created_at": 1.0}
        return Snapshot(lab="bench", lab_state="open", run=run, counters={"total": self.total})

    def count(self, seconds: float) -> None:
        """`PER_S` events a second in a thread; their times go into ``events.json``."""
        threading.Thread(target=self._count, args=(seconds,), daemon=True).start()

    def _count(self, seconds: float) -> None:
        times = []
        began = time.monotonic()
        for number in range(1, int(seconds * PER_S) + 1):
            time.sleep(max(0.0, began + number / PER_S - time.monotonic()))
            times.append(time.time())
            self.total = number
            self._bridge.wake()
        time.sleep(1)
        Path("events.json").write_text(json.dumps(times))

    def fall_silent(self, seconds: float, events: int) -> None:
        """So many events, and then a C call that holds the GIL; when that ended goes into ``silence.json``."""
        for _ in range(events):
            self.total += 1
            self._bridge.wake()
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        Path("silence.json").write_text(json.dumps(time.time()))

    def grow(self, rows: int) -> None:
        """The lab has so many rollouts at once; the time goes into ``grown.json``."""
        made = [_row(place) for place in range(rows)]
        at = time.time()
        for row in made:
            self.table.put(row)
        self.total = rows
        self._bridge.wake()
        Path("grown.json").write_text(json.dumps(at))

    def _rows(self, params: Any) -> Reply:
        return rows_reply(self.table.rows, int(params["from"]))


def _row(place: int) -> RolloutRow:
    return RolloutRow(
        row=place, id=f"r-01M8BENCH{place:012d}", group=f"g-01M8-{place // 8:06d}",
        task=f"What is {place} + {place * 7 % 1000} - {place % 37}? Use the calculator.", harness="solver",
        mode="train", state="succeeded", outcome="completed", step=place // 32, version=place // 32,
        reward=float(place % 2), advantage=0.5, weight=0.03, calls=3, tokens=60 + place % 90, created_at=1.0,
        started_at=2.0, finished_at=4.0,
    )  # fmt: skip


def start() -> CountingLab:
    """In this kernel."""
    from IPython import get_ipython

    return CountingLab(KernelLink(get_ipython()))
