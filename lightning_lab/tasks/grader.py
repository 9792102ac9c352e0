"""The grader: gives a rollout its reward, in its own process, after the agent is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, overload

from lightning_lab.harnesses.source import source_of, version_of
from lightning_lab.records import AgentResult, Task
from lightning_lab.tasks.task_set import TaskError

GraderFunction = Callable[[Task, AgentResult], Any]
"""Returns a finite number or a bool; everything else is a `grader_error`, never a reward."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grader:
    """A grading function and the hash that versions it. Make one with `grader`."""

    name: str
    version: str
    source: str
    function: GraderFunction
    timeout_s: float = 30.0
    """Seconds that one grading may take."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the grader's scrubbed environment, e.g. the key of a judge."""

    def __call__(self, task: Task, result: AgentResult) -> Any:
        """Run the function here, in this process: for trying it out."""
        return self.function(task, result)


@overload
def grader(function: GraderFunction, /) -> Grader: ...
@overload
def grader(
    *, name: str | None = None, timeout_s: float = 30.0, env: Mapping[str, str] | None = None
) -> Callable[[GraderFunction], Grader]: ...
def grader(
    function: GraderFunction | None = None,
    /,
    *,
    name: str | None = None,
    timeout_s: float = 30.0,
    env: Mapping[str, str] | None = None,
) -> Grader | Callable[[GraderFunction], Grader]:
    """Make a grader of a sync or async function of the task and the agent's result.

    What it prints becomes the rollout's verdict.

    Example::

        @ll.grader
        def exact(task, result): return result.output == task.answer
    """

    def make(target: GraderFunction) -> Grader:
        if not callable(target):
            raise TaskError("A grader is a function of two arguments, the task and the agent's result.")
        if not timeout_s > 0:
            raise TaskError(f"timeout_s is {timeout_s}; it must be above 0.")
        return Grader(
            name=name or str(getattr(target, "__name__", type(target).__name__)),
            version=version_of(target, {"timeout_s": timeout_s, "env": dict(env or {})}),
            source=source_of(target),
            function=target,
            timeout_s=float(timeout_s),
            env=dict(env or {}),
        )

    return make(function) if function is not None else make


def _cannot_grade(task: Task, result: AgentResult) -> Any:
    raise TaskError("Only agents of an external controller post their rewards. Write a grader for this harness.")


posted = Grader(name="posted", version="posted", source="", function=_cannot_grade)
"""The reward is what the agent posts: for agents of an external controller."""
