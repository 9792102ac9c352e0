"""From what a supervisor reports to outcome, reward and words: pure functions."""

from __future__ import annotations

import pytest

from lightning_lab.controller.capture import Capture
from lightning_lab.controller.outcomes import agent_ending, grade_of, grade_without_grader, output_text
from lightning_lab.records import INFRASTRUCTURE_OUTCOMES, Outcome


def report(**changes):
    plain = {"reason": "exit", "status": 0, "oom": False, "result": {"output": 1}, "stdout": "", "stderr": ""}
    return {**plain, **changes}


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "completed"),
        ({"result": {"output": None}}, "completed"),
        ({"result": {"started_at": 1.0}}, "agent_error"),
        ({"result": {"error": "Traceback"}, "status": 1}, "agent_error"),
        ({"result": {"output": 1}, "status": 3}, "agent_error"),
        ({"result": {}, "status": -9}, "agent_error"),
        ({"result": {}, "status": -9, "oom": True}, "oom"),
        ({"result": {}, "status": -9, "reason": "timeout"}, "timeout"),
        ({"result": {"output": 1}, "status": None, "reason": "cancelled"}, "cancelled"),
        ({"result": {}, "status": None, "reason": "terminated"}, "lost"),
    ],
)
def test_each_way_to_end_has_its_outcome(changes, outcome):
    assert agent_ending(report(**changes), "function", 5.0, []).outcome == outcome


def test_time_out_grader_crash_and_agent_crash_are_three_outcomes():
    timeout = agent_ending(report(reason="timeout", status=-9, result={}), "function", 5.0, [])
    crash = agent_ending(report(status=1, result={"error": "Traceback\nValueError: x"}), "function", 5.0, [])
    grade = grade_of(report(result={"error": "boom"}), 5.0, "exact")
    assert (timeout.outcome, crash.outcome, grade.reward) == (Outcome.TIMEOUT, Outcome.AGENT_ERROR, None)
    assert grade_without_grader(crash).verdict == "agent_error: reward 0 without grading. ValueError: x"


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.COMPLETED])
def test_infrastructure_never_becomes_reward_0(outcome):
    ending = agent_ending(None, "function", 5.0, [])
    assert ending.outcome is Outcome.LOST
    grade = grade_without_grader(type(ending)(outcome=outcome))
    assert grade.reward == (None if outcome in INFRASTRUCTURE_OUTCOMES else 0.0)


@pytest.mark.parametrize("result", [{}, {"reward": "1.0"}, {"reward": None}, {"reward": True}])
def test_a_report_that_is_no_number_is_no_reward(result):
    assert grade_of(report(result=result), 5.0, "exact").reward is None


def test_output_is_kept_as_text():
    assert [output_text(value) for value in (None, "é", {"a": "é"}, 0)] == ["", "é", '{"a": "é"}', "0"]


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_a_capture_keeps_both_ends_and_counts_the_rest(chunk):
    text = "".join(f"{number:04d}" for number in range(250))
    capture = Capture(kept=100)
    for start in range(0, len(text), chunk):
        capture.feed(text[start : start + chunk].encode())
    assert capture.text() == f"{text[:100]}\n[… 800 bytes left out …]\n{text[-100:]}"


def test_a_capture_that_is_not_full_keeps_everything():
    capture = Capture(kept=4)
    capture.feed("añb".encode())
    capture.feed(b"cdef")
    assert capture.text() == "añbcdef"
