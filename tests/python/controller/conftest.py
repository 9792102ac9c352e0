"""A controller with real processes and the real store; only the gateway's credentials are made up."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from lightning_lab.controller import Controller
from lightning_lab.harnesses import Harness, harness
from lightning_lab.records import AgentResult, Rollout, RolloutState, Run, Sampling, Task
from lightning_lab.store import Store
from lightning_lab.tasks import Grader, grader

MARK = "LIGHTNING_LAB_TEST_MARK"


@dataclass(frozen=True)
class Access:
    url: str
    key: str


@dataclass
class Credentials:
    """Counts what is open; ``explain`` gives the faults of a rollout."""

    open: dict[str, Sampling | None] = field(default_factory=dict)
    explain: list[str] = field(default_factory=list)
    gateway: str = "http://127.0.0.1:9"

    def open_rollout(self, rollout_id: str, *, attempt: int = 1, sampling: Sampling | None = None) -> Access:
        self.open[rollout_id] = sampling
        return Access(url=f"{self.gateway}/rollout/{rollout_id}", key=f"key-of-{rollout_id}")

    def close_rollout(self, rollout_id: str) -> None:
        del self.open[rollout_id]

    def faults(self, rollout_id: str) -> list[str]:
        return self.explain


def processes(mark: str) -> list[psutil.Process]:
    """Every process on this machine that was started with the mark in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_until(condition: Callable[[], Any], limit_s: float = 90.0) -> Any:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


class Bench:
    """What a test needs to run agents, all of them marked."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.mark = uuid.uuid4().hex
        self.root = root / "work"
        self.store = Store(root / "store.sqlite")
        self.store.put_run(Run(id="run", kind="single", state="running", settings={}, created_at=time.time())).result(9)
        self.credentials = Credentials()
        self.controller = Controller(self.store, self.credentials, self.root, **options)
        self.controller.start()
        self.equal = self.grader(lambda task, result: bool(result.output == task.answer))

    def harness(self, function: Callable[[Task], Any], **options: Any) -> Harness:
        return harness(**{**options, "env": {MARK: self.mark, **options.get("env", {})}})(function)

    def command(self, *argv: str, **options: Any) -> Harness:
        return Harness.command(argv, **{**options, "env": {MARK: self.mark, **options.get("env", {})}})

    def grader(self, function: Callable[[Task, AgentResult], Any], **options: Any) -> Grader:
        return grader(env={MARK: self.mark}, **options)(function)

    def rollout(self, harness: Harness, **changes: Any) -> Rollout:
        task = changes.pop("task", Task(id="t", prompt="What is 6 * 7?", answer="42", fields={"level": 3}))
        plain = Rollout(
            id=f"r-{uuid.uuid4().hex}",
            run_id="run",
            group_id="g",
            task=task,
            harness=harness.info,
            mode="single",
            state=RolloutState.QUEUING,
        )
        return replace(plain, **changes)

    def run(self, harness: Harness, grader: Grader | None = None, **changes: Any) -> Rollout:
        rollout = self.rollout(harness, **changes)
        return self.controller.submit(rollout, harness, grader or self.equal).result(60)

    def has_started(self, rollout_id: str) -> bool:
        """Whether the store knows that agent code has begun."""
        known = {rollout.id: rollout for rollout in self.store.rollouts("run")}
        return rollout_id in known and known[rollout_id].agent_started_at is not None

    def close(self) -> None:
        self.controller.close()
        self.store.close()

    def processes(self) -> list[psutil.Process]:
        return processes(self.mark)

    def folders(self) -> list[Path]:
        """The working directories there are now."""
        return [*self.root.glob("rollouts-*/r-*")]

    @staticmethod
    def wait_until(condition: Callable[[], Any]) -> Any:
        return wait_until(condition)


@pytest.fixture(scope="module")
def make_module_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Bench]]:
    """Benches that a file's tests share; at the end nothing of them may be left."""
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(tmp_path_factory.mktemp("bench"), **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()
        assert bench.processes() == []
        assert list(bench.root.iterdir()) == []
        assert bench.credentials.open == {}


@pytest.fixture(scope="module")
def bench(make_module_bench: Callable[..., Bench]) -> Bench:
    """Shared by a file's tests."""
    return make_module_bench()


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """For tests that close or break what they use."""
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Bench(folder, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()
        assert bench.processes() == []
        assert list(bench.root.iterdir()) == []


@pytest.fixture
def count_processes() -> Callable[[str], int]:
    return lambda mark: len(processes(mark))
