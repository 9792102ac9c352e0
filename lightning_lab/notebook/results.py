"""What `lab.run` makes of a finished rollout: the view, or the error that the reader of a cell needs."""

from __future__ import annotations

from typing import Any, NoReturn

from lightning_lab.harnesses import Harness
from lightning_lab.notebook.errors import GraderError, HarnessError, RolloutError
from lightning_lab.records import INFRASTRUCTURE_OUTCOMES, Outcome, Rollout, RolloutState, Task
from lightning_lab.tasks import Grader

_MAX_CHARS = 20_000


def raise_if_failed(rollout: Rollout) -> None:
    """Raises `HarnessError` with the agent's traceback, `GraderError`, or `RolloutError` for everything else."""
    if rollout.state is RolloutState.SUCCEEDED:
        return
    if rollout.outcome is Outcome.GRADER_ERROR:
        raise GraderError(
            f"The grader gave no reward for rollout {rollout.id}: {_tail(rollout.verdict or rollout.error)}\n"
            "A grader returns a finite number or a bool.",
            rollout,
        )
    if rollout.outcome in INFRASTRUCTURE_OUTCOMES or rollout.outcome is None:
        said = _tail(rollout.error or rollout.verdict)
        raise RolloutError(f"Rollout {rollout.id} ended as {rollout.outcome or rollout.state}. {said}".strip(), rollout)
    _raise_agent_failure(rollout)


def checked_harness(harness: Any) -> Harness:
    """Raises TypeError with the line that was forgotten."""
    if isinstance(harness, Harness):
        return harness
    if callable(harness):
        name = getattr(harness, "__name__", "solver")
        raise TypeError(f"{name} is a plain function. Put @ll.harness above it, or pass ll.harness({name}).")
    raise TypeError(f"A harness is expected, not {type(harness).__name__}. Make one with @ll.harness.")


def checked_grader(grader: Any) -> Grader:
    """Raises TypeError with the line that was forgotten."""
    if isinstance(grader, Grader):
        return grader
    if callable(grader):
        name = getattr(grader, "__name__", "exact")
        raise TypeError(f"{name} is a plain function. Put @ll.grader above it, or pass ll.grader({name}).")
    raise TypeError(f"A grader is expected, not {type(grader).__name__}. Make one with @ll.grader.")


def checked_task(task: Any) -> Task:
    """A task, or text as the prompt of one. Raises TypeError."""
    if isinstance(task, Task):
        return task
    if isinstance(task, str):
        return Task(id="typed", prompt=task, source="typed")
    raise TypeError(f"A task is expected (train[0], or a prompt as text), not {type(task).__name__}.")


def _raise_agent_failure(rollout: Rollout) -> NoReturn:
    said = _tail(rollout.error or rollout.stderr or rollout.verdict)
    raise HarnessError(f"{rollout.harness.name} failed ({rollout.outcome}) in rollout {rollout.id}.\n\n{said}", rollout)


def _tail(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MAX_CHARS else f"… {text[-_MAX_CHARS:]}"
