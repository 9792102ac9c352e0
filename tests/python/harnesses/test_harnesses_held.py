"""Admission is paused while every agent waits for an answer: none notices, and no call is made twice.

The short test scales everything down: agents that give up after seconds, early headers and signs of life in between.
The slow one holds the agents as they are shipped for six minutes: pytest -m "harnesses and slow" tests/python/harnesses
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from harnesses_bench import HarnessBench
from harnesses_coder import fixed, solve, task

from lightning_lab.gateway import Patience
from lightning_lab.harnesses import PROFILES, Harness, HarnessError
from lightning_lab.harnesses.profile import WAIT_S
from lightning_lab.records import Outcome

pytestmark = pytest.mark.harnesses

AGENTS = ("mini-swe-agent", "codex", "claude-code", "opencode", "qwen-code", "openai-agents", "langchain")
IMPATIENT_S = 15
"""What agents are told to wait for in the short test."""


@pytest.fixture
def make_bench(tmp_path) -> Iterator[Callable[..., HarnessBench]]:
    made: list[HarnessBench] = []

    def make(**options) -> HarnessBench:
        made.append(HarnessBench(tmp_path, solve, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def impatient(harness: Harness) -> Harness:
    """The same agent, told to give up after seconds instead of an hour."""

    def hasty(text: str) -> str:
        hasty = text.replace(str(WAIT_S * 1000), str(IMPATIENT_S * 1000)).replace(str(WAIT_S), str(IMPATIENT_S))
        return hasty.replace('"chunkTimeout": false', f'"chunkTimeout": {IMPATIENT_S * 1000}')

    return replace(
        harness,
        argv=tuple(map(hasty, harness.argv)),
        env={name: value if "LIFETIME" in name else hasty(value) for name, value in harness.env.items()},
        home={path: hasty(text) for path, text in harness.home.items()},
    )


def hold_all(bench: HarnessBench, harnesses: list[Harness], hold_s: float) -> None:
    """Begin all with admission closed, open it ``hold_s`` after the last of them waits, and check how they ended."""
    with bench.gateway.paused():
        rollouts = [bench.begin(one, task(one.name), fixed, name=f"r-{one.name}") for one in harnesses]
        while bench.gateway.admission.held < len(harnesses):
            assert not any(rollout.done() for rollout in rollouts), [one.result() for one in rollouts if one.done()]
            time.sleep(0.1)
        time.sleep(hold_s)
        assert bench.gateway.admission.held == len(harnesses), "an agent gave up, or asked twice"
    for harness, ended in zip(harnesses, [rollout.result(300) for rollout in rollouts], strict=True):
        assert (ended.outcome, ended.reward) == (Outcome.COMPLETED, 1.0), (
            f"{harness.name}: {ended.stdout}{ended.stderr}"
        )
        calls = bench.calls(ended.id)
        assert [(call.kind, call.delivered) for call in calls] == [("main", True)] * 4, harness.name
        assert calls[0].held_s > hold_s


@pytest.mark.timeout(400)
def test_early_headers_and_signs_of_life_keep_every_agent(make_bench):
    bench = make_bench(patience=Patience(early_s=1.0, beat_s=0.5))
    hold_all(bench, [impatient(Harness.profile(name)) for name in AGENTS], 2.2 * IMPATIENT_S)


def processes_of(folder: Path) -> list[str]:
    """Command lines of all processes whose home is below ``folder``."""
    found = []
    for process in psutil.process_iter():
        try:
            home = process.environ().get("HOME", "")
            if Path(home).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.mark.timeout(400)
def test_agents_that_are_cancelled_while_they_wait_leave_nothing(make_bench, tmp_path):
    bench, names = make_bench(), ("codex", "openai-agents")
    with bench.gateway.paused():
        rollouts = [bench.begin(Harness.profile(name), task(name), fixed, name=f"r-{name}") for name in names]
        while bench.gateway.admission.held < len(names):
            assert not any(rollout.done() for rollout in rollouts)
            time.sleep(0.1)
        assert any("codex exec" in line for line in processes_of(tmp_path))
        for name in names:
            bench.controller.cancel(f"r-{name}")
        assert [rollout.result(60).outcome for rollout in rollouts] == [Outcome.CANCELLED] * 2
        assert bench.gateway.admission.held == 0
    assert not [line for line in processes_of(tmp_path) if "fork_server" not in line]
    for name in names:
        assert [(call.kind, call.delivered) for call in bench.calls(f"r-{name}")] == [("undelivered", False)]
        assert bench.samples(f"r-{name}").samples == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_agent_as_it_is_shipped_survives_six_minutes(make_bench):
    harnesses = []
    for name in PROFILES:
        try:
            harnesses.append(Harness.profile(name))
        except HarnessError:
            assert name not in AGENTS
    hold_all(make_bench(), harnesses, 360)
