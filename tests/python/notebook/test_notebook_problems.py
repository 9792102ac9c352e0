"""Findings about a run: what is found, how it is ranked, and that a healthy run has none."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_lab.notebook.problems import MAX_EVIDENCE, Marks, find_problems
from lightning_lab.notebook.rows import RolloutRow
from lightning_lab.records import Step


def row(place: int, **more: Any) -> RolloutRow:
    fields: dict[str, Any] = {
        "row": place, "id": f"r-{place}", "group": f"g-{place // 2}", "task": "", "harness": "h", "mode": "train",
        "state": "succeeded", "outcome": "completed", "step": 0, "version": 0, "reward": float(place % 2),
        "advantage": 0.0, "weight": 0.1, "calls": 1, "tokens": 1, "created_at": 0.0, "started_at": 1.0,
        "finished_at": 3.0, **more,
    }  # fmt: skip
    return RolloutRow(**fields)


def step(index: int, skipped: str = "", **metrics: float) -> Step:
    return Step(
        run_id="run", index=index, version=index + 1, rollout_ids=(), metrics=metrics, started_at=0, finished_at=1,
        skipped=skipped,
    )  # fmt: skip


HEALTHY = [row(place) for place in range(40)]


def kinds(*args: Any, **more: Any) -> list[str]:
    return [problem["kind"] for problem in find_problems(*args, **more)]


def test_a_healthy_run_has_no_problem() -> None:
    steps = [step(i, approx_kl=0.01, grad_norm=1.0, logprob_diff_max=1e-5) for i in range(10)]
    assert find_problems(HEALTHY, steps, Marks(), now=10.0) == []
    assert find_problems([], [], Marks()) == []


def test_what_puts_the_numbers_in_doubt_comes_first() -> None:
    rows = [*HEALTHY, row(40, outcome="grader_error", state="failed", reward=None)]
    marks = Marks(tampered=["r-3", "r-3"])
    marks.breaks["tool_args"] += ["r-1", "r-1", "r-2"]
    steps = [step(0, logprob_diff_max=1e-5, parity_logprob_max=0.2), step(1, "no_signal")]
    found = find_problems(rows, steps, marks)
    assert [p["kind"] for p in found] == ["tamper", "mismatch", "infrastructure", "break", "skipped"]
    tamper, mismatch, lost, broken, skipped = found
    assert (tamper["rollouts"], tamper["count"]) == (["r-3"], 2)
    assert mismatch["step"] == 0 and "0.2 nats" in mismatch["detail"]
    assert lost["rollouts"] == ["r-40"] and "1 of 41 rollouts" in lost["detail"]
    assert broken["rollouts"] == ["r-2", "r-1"] and broken["count"] == 3
    assert skipped["step"] == 1 and "1 of 2 steps" in skipped["detail"]


def test_a_rollout_is_stuck_only_while_the_run_goes_on() -> None:
    running = row(40, state="running", outcome="", reward=None, finished_at=None, started_at=100.0)
    assert kinds([*HEALTHY, running], [], Marks(), now=150.0) == [], "not yet a minute"
    assert kinds([*HEALTHY, running], [], Marks(), now=170.0) == ["stuck"]
    assert kinds([*HEALTHY, running], [], Marks()) == []
    slow = [row(place, finished_at=101.0) for place in range(40)]
    assert kinds([*slow, running], [], Marks(), now=500.0) == [], "five medians have not passed"


def test_groups_without_signal_are_named() -> None:
    rows = [row(place, reward=1.0) for place in range(20)] + HEALTHY[20:]
    (found,) = find_problems(rows, [step(0)], Marks())
    assert found["kind"] == "no_signal" and found["count"] == 10 and found["groups"][0] == "g-0"
    assert "10 of 20 groups" in found["detail"]
    assert kinds([row(p, reward=1.0, mode="eval") for p in range(20)], [step(0)], Marks()) == []


def test_a_spike_names_its_step() -> None:
    steps = [step(i, approx_kl=0.01 if i != 7 else 0.9) for i in range(10)]
    (found,) = find_problems(HEALTHY, steps, Marks())
    assert (found["kind"], found["step"]) == ("spike", 7)


def test_a_spike_of_the_kl_names_the_rollouts_that_made_it() -> None:
    steps = [step(i, approx_kl=0.9 if i == 7 else 0.002) for i in range(10)]
    asked: list[tuple[int, str]] = []

    def drivers(of: Step, measure: str) -> list[tuple[str, float]]:
        asked.append((of.index, measure))
        return [("r-2", 0.5), ("r-1", 0.25)]

    (found,) = find_problems(HEALTHY, steps, Marks(), drivers=drivers)
    assert (asked, found["rollouts"], found["shade"]) == ([(7, "kl")], ["r-2", "r-1"], "kl")
    assert found["detail"].endswith("2 rollouts made 75% of it.")


@pytest.mark.parametrize(
    ("metric", "usual", "high", "shade"), [("clip_frac", 0.01, 0.3, "clip"), ("ratio_max", 1.1, 9.0, "ratio")]
)
def test_spikes_of_clipping_and_ratio_say_how_their_tokens_are_looked_at(
    metric: str, usual: float, high: float, shade: str
) -> None:
    steps = [step(i, **{metric: high if i == 3 else usual}) for i in range(10)]
    (found,) = find_problems(HEALTHY, steps, Marks(), drivers=lambda *_: [("r-2", 1.0)])
    assert (found["step"], found["rollouts"], found["shade"]) == (3, ["r-2"], shade)


def test_many_failures_of_the_agent_weigh_more_than_a_few() -> None:
    few = [*HEALTHY, row(40, outcome="agent_error")]
    many = [*HEALTHY, *[row(40 + i, outcome="agent_error") for i in range(100)]]
    assert [p["severity"] for p in find_problems(few, [], Marks())] == [1]
    (found,) = find_problems(many, [], Marks())
    assert (found["severity"], found["count"], len(found["rollouts"])) == (2, 100, MAX_EVIDENCE)
    assert found["rollouts"][0] == "r-139", "the latest first"
