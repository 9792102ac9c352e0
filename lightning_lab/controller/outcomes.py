"""How a rollout ended: from what the supervisor saw to outcome, reward and words. Pure functions."""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_lab.records import Outcome, RolloutState
from lightning_lab.store import Redaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What came of the agent, before grading."""

    outcome: Outcome
    error: str = ""
    output: Any = None
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What came of the grading: ``reward`` is None where there is no valid one."""

    reward: float | None
    verdict: str


STATES = {Outcome.COMPLETED: RolloutState.SUCCEEDED, Outcome.CANCELLED: RolloutState.CANCELLED}
"""Every other outcome is a failure."""

_FAULTS = (Outcome.POLICY_ERROR, Outcome.CONTEXT_OVERFLOW)
_AGENT_FAILURES = (Outcome.AGENT_ERROR, Outcome.TIMEOUT, Outcome.CONTEXT_OVERFLOW)


def agent_ending(report: Mapping[str, Any] | None, kind: str, timeout_s: float, faults: Sequence[str]) -> Ending:
    """The supervisor's last report as an ending; None means that it vanished without one.

    Where the agent failed because the model did (``faults``), the model's fault is the outcome.
    """
    if report is None:
        return Ending(outcome=Outcome.LOST, error="The rollout's supervisor vanished without a report.")
    outcome, error = _agent_outcome(report, kind, timeout_s)
    if outcome in (Outcome.AGENT_ERROR, Outcome.TIMEOUT):
        outcome = next((fault for fault in _FAULTS if fault in faults), outcome)
    stdout, stderr = str(report["stdout"]), str(report["stderr"])
    return Ending(
        outcome=outcome,
        error=error,
        output=stdout if kind == "command" else report["result"].get("output"),
        exit_code=report["status"],
        stdout=stdout,
        stderr=stderr,
    )


def keyless(ending: Ending, key: str) -> Ending:
    """Agents print their environment; no record holds a key, not even one that is dead by now."""
    return Redaction({"key_of_this_rollout": re.escape(key)}).record(ending)


def _agent_outcome(report: Mapping[str, Any], kind: str, timeout_s: float) -> tuple[Outcome, str]:
    reason, status, result = report["reason"], report["status"], report["result"]
    if reason == "cancelled":
        return Outcome.CANCELLED, ""
    began = report.get("began", True)
    if reason == "timeout" and not began:
        return Outcome.BOOT_TIMEOUT, "The agent did not begin in time: is the machine overloaded?"
    if reason == "timeout":
        return Outcome.TIMEOUT, f"The agent was ended after {timeout_s:g} s (timeout_s of the harness)."
    if reason == "terminated":
        return Outcome.LOST, "The rollout's supervisor was told to stop: its fork server ended."
    if report["oom"]:
        why = report.get("over") or "it, or what it started, was killed for its memory"
        return Outcome.OOM, f"The agent ran out of memory: {why}."
    if reason == "limit":
        return Outcome.AGENT_ERROR, f"The agent was ended: {report.get('over')}."
    if not began:
        words = _last_line(str(report["stderr"])) or _exit_words(status)
        return Outcome.LOST, f"The agent's process ended before the agent began: {words}"
    if "error" in result:
        return Outcome.AGENT_ERROR, str(result["error"])
    if status == 0 and (kind == "command" or "output" in result):
        return Outcome.COMPLETED, ""
    return Outcome.AGENT_ERROR, _exit_words(status)


def _exit_words(status: int | None) -> str:
    if status == 0:
        return "The agent's process exited without returning from the harness."
    if status in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ):
        return "The agent was killed by SIGXFSZ: it wrote a file larger than Limits.disk_gb."
    if status is not None and status < 0:
        return f"The agent was killed by {_signal_name(-status)}."
    hint = f" (128 + {_signal_name(status - 128)})" if status is not None and status > 128 else ""
    return f"The agent exited with code {status}{hint}."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def grade_without_grader(ending: Ending) -> Grade:
    """An agent that failed by itself gets 0; where the fault is not the agent's there is no reward."""
    words = _last_line(ending.error) or ending.outcome.value
    if ending.outcome in _AGENT_FAILURES:
        return Grade(reward=0.0, verdict=f"{ending.outcome.value}: reward 0 without grading. {words}")
    return Grade(reward=None, verdict=f"{ending.outcome.value}: no reward. {words}")


def grade_of(report: Mapping[str, Any] | None, timeout_s: float, name: str) -> Grade:
    """The grader's report as a reward, or as words that say why there is none."""
    if report is None:
        return Grade(reward=None, verdict=f"The process of grader {name} vanished without a report.")
    if report["reason"] == "timeout":
        return Grade(reward=None, verdict=f"Grader {name} was ended after {timeout_s:g} s (its timeout_s).")
    if report["oom"] or report["reason"] == "limit":
        why = report.get("over") or "it ran out of memory"
        return Grade(reward=None, verdict=f"Grader {name} was ended: {why}.")
    result = report["result"]
    if "error" in result:
        return Grade(reward=None, verdict=f"Grader {name} raised:\n{result['error']}")
    if "unusable" in result:
        return Grade(reward=None, verdict=f"Grader {name} returned {result['unusable']}; a finite number is needed.")
    reward = result.get("reward")
    if not isinstance(reward, float):
        return Grade(reward=None, verdict=f"Grader {name} ended without a reward. {_exit_words(report['status'])}")
    if not math.isfinite(reward):
        return Grade(reward=None, verdict=f"Grader {name} returned {reward}; a finite number is needed.")
    return Grade(reward=reward, verdict=str(report["stdout"]).strip())


def output_text(output: Any) -> str:
    """The output as the record keeps it: text as it is, other JSON values as JSON."""
    if output is None:
        return ""
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def storable(text: str) -> str:
    """Text without lone surrogates, which no UTF-8 file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _last_line(text: str) -> str:
    """The last line that says something: of a traceback that is the exception."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
