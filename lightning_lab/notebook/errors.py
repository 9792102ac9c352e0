"""The named errors of a notebook session: each says what happened, what it means and what to do."""

from __future__ import annotations

from lightning_lab.records import Rollout


class LabError(RuntimeError):
    """Something in the lab could not be done."""


class LabBusyError(LabError):
    """Another lab is asked for while the open one has work in progress."""


class LabClosedError(LabError):
    """The lab was closed; a new ``ll.Lab(...)`` opens another one."""


class MissingExtraError(ImportError):
    """An optional part of the package is not installed."""


class ResumeError(LabError):
    """A run cannot be gone on with as asked."""


class RunFailedError(LabError):
    """A run ended by itself before its last step."""


class RolloutError(LabError):
    """A rollout started by ``lab.run`` has no valid result. ``rollout`` holds what is known about it."""

    def __init__(self, message: str, rollout: Rollout) -> None:
        super().__init__(message)
        self.rollout = rollout


class HarnessError(RolloutError):
    """The agent failed; the message ends with its own traceback."""

    def _render_traceback_(self) -> list[str]:
        """IPython shows these lines: the agent's traceback is what helps, the lab's own frames are not."""
        return [f"{type(self).__name__}: {self}"]


class GraderError(RolloutError):
    """The grader failed, or gave something that is not a finite number."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]
