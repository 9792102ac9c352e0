"""What the gateway costs: requests per second beside a bare forwarder, on loopback. Prints one JSON object.

    python benchmarks/gateway.py --json
    python benchmarks/gateway.py --json --target http://127.0.0.1:9999/v1     # the same load on another proxy
    python benchmarks/gateway.py --parts 2k --modes thread --seconds 4        # what a call costs, and in which thread

Every part is a process of its own (`gateway_processes`): a scripted upstream, the bare forwarder (Starlette, aiohttp,
orjson; it only keeps the ids), the gateway with everything on, and the load generator.

* `rps_2k`, `rps_30k`: 2,000 + 200 and 30,000 + 1,000 tokens a call, 32 clients; `forwarder_…`: the same, forwarder;
  `ratio_…`: ours over the forwarder's.
* `cpu_ms_2k`, …: processor time of the server per call, in process mode of the gateway's process alone;
  `cpu_ratio_…`: the forwarder's over ours. On a machine that does other work as well, these say more than requests per
  second.
* `loop_cpu_ms_2k`, `writer_cpu_ms_2k`, `panel_cpu_ms_2k`: the same by thread, where the gateway is a thread: its event
  loop, the store's writer, and the thread that makes the panel's frames.
* `added_p99_ms`: p99 of ours minus the forwarder's, 2 K, 32 clients; `p99_2k_ms`: ours.
* `loop_lag_p99_ms`, `loop_lag_max_ms`: how late the gateway's event loop wakes up under the 2 K load;
  `loop_lag_128k_max_ms`: while eight replies of 128 K tokens arrive at once. In process mode, how long ``/health``
  takes.
* `mb_per_call_2k`: growth of the gateway's resident memory per stored call.
* `inflight_200_ratio`, `inflight_400_ratio`: ours over the forwarder's with 200 and 400 clients and an upstream that
  takes 0.5 s.
* `busy_ratio_2k`: ours over the forwarder's, both in a thread beside a main thread that runs pure Python.
* `process_…`: the gateway in a process of its own (``Lab(gateway="process")``), the kernel running pure Python.

Ours and the forwarder take turns, `TURNS` times each, so that what else the machine does meets both. The forwarder asks
for a whole answer and ours for a stream, as each would on its own: nothing of a call is lost when it breaks off.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np
from gateway_processes import (
    Load,
    Outcome,
    Target,
    free_port,
    loaded,
    resident_mb,
    run_forwarder,
    run_ours,
    run_probe,
    run_upstream,
    started,
    used_s,
    wait_for,
)

WARM = Load(2000, 200, 32, 1.0)
TURNS = 4
PARTS = ("2k", "30k", "inflight", "long", "busy")
MODES = ("thread", "process")
THREADS = {"loop": "lightning-lab-gateway", "writer": "store-writer", "panel": "lightning-lab-bridge"}
"""Whose processor time is told, and how the names of those threads begin."""


@dataclass
class Server:
    """What is measured."""

    targets: list[Target]
    pid: int | None = None
    gateway_pid: int | None = None
    """The process that serves: ``pid`` or one below it."""
    pipe: Connection | None = None
    threads: dict[str, int] = field(default_factory=dict)
    """Names and system ids of the threads of ``pid``."""

    def load(self, load: Load) -> Outcome:
        return loaded(self.targets, load, self.gateway_pid)

    def watched(self, load: Load) -> tuple[Outcome, list[float]]:
        """The outcome, and the lags of the loop in ms."""
        if self.pipe is None:
            return self.load(load), []
        self.pipe.send("watch")
        with probed(self.targets[0][0]) as seen:
            outcome = self.load(load)
        return outcome, [1000 * lag for lag in self._read() or seen]

    def resident_mb(self) -> float:
        """Memory once everything is stored."""
        if self.pipe is None or self.pid is None:
            return float("nan")
        self._read()
        return resident_mb(self.pid)

    def cpu_s(self) -> dict[str, float]:
        """Processor time of each of `THREADS`."""
        found = {}
        for short, name in THREADS.items():
            tasks = [f"/proc/{self.pid}/task/{id_}" for key, id_ in self.threads.items() if key.startswith(name)]
            found[short] = sum(map(used_s, tasks))
        return found

    def _read(self) -> list[float]:
        assert self.pipe is not None
        self.pipe.send("read")
        return list(self.pipe.recv())


@contextmanager
def probed(url: str) -> Iterator[list[float]]:
    """Filled at the end with the lags, in seconds, that a process of its own has seen."""
    here, there = multiprocessing.Pipe()
    lags: list[float] = []
    with started(run_probe, there, url):
        yield lags
        here.send("stop")
        lags += here.recv()


@contextmanager
def forwarder(upstream: str, *, busy: bool = False) -> Iterator[Server]:
    port = free_port()
    with started(run_forwarder, port, upstream, busy) as process:
        wait_for(port)
        server = Server([(f"http://127.0.0.1:{port}/v1", "none")], process.pid, process.pid)
        server.load(WARM)
        yield server


@contextmanager
def ours(upstream: str, *, mode: str = "thread", busy: bool = False) -> Iterator[Server]:
    here, there = multiprocessing.Pipe()
    with started(run_ours, there, upstream, mode, busy) as process:
        there.close()
        accesses, gateway_pid, threads = here.recv()
        server = Server([(f"{url}/v1", key) for url, key in accesses], process.pid, gateway_pid, here, threads)
        server.load(WARM)
        yield server
        here.send("stop")
        process.join(10)


def measure(seconds: float, target: str | None, parts: Collection[str], modes: Collection[str]) -> dict[str, float]:
    """All figures of these parts. With a target only its own and the forwarder's."""
    port, figures = free_port(), dict[str, float]()
    with started(run_upstream, port):
        wait_for(port)
        upstream = f"http://127.0.0.1:{port}"
        with forwarder(upstream) as bare:
            if target is not None:
                return rounded(compared(Server([(target, "none")]), bare, seconds, parts))
            if "thread" in modes:
                with ours(upstream) as server:
                    figures |= compared(server, bare, seconds, parts)
            if "process" in modes:
                with ours(upstream, mode="process", busy=True) as server:
                    outside = compared(server, bare, seconds, parts)
                figures |= {f"process_{name}": value for name, value in outside.items() if "forwarder" not in name}
        if "busy" in parts:
            with forwarder(upstream, busy=True) as bare, ours(upstream, busy=True) as server:
                figures |= beside_python(server, bare, seconds)
    return rounded(figures)


def compared(server: Server, bare: Server, seconds: float, parts: Collection[str]) -> dict[str, float]:
    """Ours beside the forwarder's."""
    figures: dict[str, float] = {}
    part = seconds / TURNS
    if "2k" in parts:
        figures |= small_calls(server, bare, part)
    if "30k" in parts:
        figures |= pair("30k", *in_turns(server, bare, Load(30_000, 1000, 32, part)))
    for clients in (200, 400) if "inflight" in parts else ():
        many, bare_many = in_turns(server, bare, Load(2000, 200, clients, max(part, 3.0), delay_s=0.5))
        figures |= {f"rps_{clients}": many.rps, f"inflight_{clients}_ratio": many.rps / bare_many.rps}
    if "long" in parts and server.pipe is not None:
        figures |= long_replies(server)
    return figures


def small_calls(server: Server, bare: Server, seconds: float) -> dict[str, float]:
    """Speed first, then, under the same load once more, lag and memory: who looks for those is work for the loop."""
    load = Load(2000, 200, 32, seconds)
    before, mb_before = server.cpu_s(), server.resident_mb()
    small, small_bare = in_turns(server, bare, load)
    figures = pair("2k", small, small_bare)
    if server.pid == server.gateway_pid and server.threads:
        spent = {name: used - before[name] for name, used in server.cpu_s().items()}
        figures |= {f"{name}_cpu_ms_2k": 1000 * used / small.requests for name, used in spent.items()}
    figures |= {"p99_2k_ms": small.p99_ms, "added_p99_ms": small.p99_ms - small_bare.p99_ms}
    watched, lags = server.watched(load)
    figures["mb_per_call_2k"] = (server.resident_mb() - mb_before) / (small.requests + watched.requests)
    if lags:
        figures |= {"loop_lag_p99_ms": float(np.quantile(lags, 0.99)), "loop_lag_max_ms": max(lags)}
    return figures


def in_turns(server: Server, bare: Server, load: Load) -> tuple[Outcome, Outcome]:
    """Ours and the forwarder's under the same load."""
    turns = [(server.load(load), bare.load(load)) for _ in range(TURNS)]
    return together([mine for mine, _ in turns]), together([theirs for _, theirs in turns])


def together(turns: list[Outcome]) -> Outcome:
    """Turns of equal length as one."""
    requests = sum(turn.requests for turn in turns)
    return Outcome(
        requests,
        rps=sum(turn.rps for turn in turns) / len(turns),
        p99_ms=sum(turn.p99_ms for turn in turns) / len(turns),
        cpu_ms=sum(turn.cpu_ms * turn.requests for turn in turns) / requests,
    )


def pair(name: str, mine: Outcome, theirs: Outcome) -> dict[str, float]:
    return {
        f"rps_{name}": mine.rps,
        f"forwarder_rps_{name}": theirs.rps,
        f"ratio_{name}": mine.rps / theirs.rps,
        f"cpu_ms_{name}": mine.cpu_ms,
        f"forwarder_cpu_ms_{name}": theirs.cpu_ms,
        f"cpu_ratio_{name}": theirs.cpu_ms / mine.cpu_ms if mine.cpu_ms else float("nan"),
    }


def long_replies(server: Server) -> dict[str, float]:
    _, lags = server.watched(Load(1000, 131_072, 8, 1.0, once=True))
    return {"loop_lag_128k_max_ms": max(lags)}


def beside_python(server: Server, bare: Server, seconds: float) -> dict[str, float]:
    mine, theirs = in_turns(server, bare, Load(2000, 200, 32, seconds / TURNS))
    return {"busy_rps_2k": mine.rps, "busy_forwarder_rps_2k": theirs.rps, "busy_ratio_2k": mine.rps / theirs.rps}


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 4) for key, value in figures.items() if value == value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--target", help="base URL of another proxy (append /v1)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="which loads; all unless given")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="where the gateway runs; both")
    options = parser.parse_args()
    figures = measure(options.seconds, options.target, options.parts, options.modes)
    print(json.dumps(figures, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
