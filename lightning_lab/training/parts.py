"""What training needs from a lab: interfaces, so that it knows neither how the gateway nor how the controller works."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from lightning_lab.controller.retries import NEVER, Retries
from lightning_lab.harnesses import Harness
from lightning_lab.policy.base import Policy
from lightning_lab.records import PauseMode, Rollout, Sampling
from lightning_lab.store import RunFolder, Store
from lightning_lab.tasks import Grader


class PauseReport(Protocol):
    """What a pause did."""

    @property
    def aborted(self) -> int:
        """Calls cut off because the deadline passed."""
        ...


class PausableGateway(Protocol):
    def pause(self, *, deadline_s: float = 60.0, mode: PauseMode = "wait") -> PauseReport:
        """Close admission, then drain: let calls finish, or interrupt them to go on after `resume`."""
        ...

    def resume(self) -> None: ...


class RolloutController(Protocol):
    def submit(
        self,
        rollout: Rollout,
        harness: Harness,
        grader: Grader,
        *,
        sampling: Sampling | None = None,
        retries: Retries = NEVER,
    ) -> Future[Rollout]:
        """The future resolves with the terminal rollout, which is committed by then; its last attempt, of several."""
        ...

    def cancel(self, rollout_id: str) -> None: ...


class LabParts(Protocol):
    """The parts of a lab that training uses."""

    @property
    def policy(self) -> Policy:
        """Also a `Learner` when ``can_learn``."""
        ...

    @property
    def store(self) -> Store: ...
    @property
    def gateway(self) -> PausableGateway: ...
    @property
    def controller(self) -> RolloutController: ...
    @property
    def folder(self) -> RunFolder:
        """The run's own."""
        ...
