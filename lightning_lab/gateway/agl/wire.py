"""The JSON of Agent Lightning v1.0: names, defaults and states as its clients send and expect them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

FIRST_ATTEMPT = "0"
RolloutId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._~-]{1,128}$")]
"""Rollout ids stand in paths."""


class State(StrEnum):
    """The states of a rollout there; what the lab cancels has failed for it."""

    QUEUING = "queuing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


NEXT: dict[State, frozenset[State]] = {
    State.QUEUING: frozenset({State.RUNNING, State.FAILED}),
    State.RUNNING: frozenset({State.SUCCEEDED, State.FAILED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
}


class LocalConfig(BaseModel):
    """What the local controller starts."""

    agent_class: str | None = None
    env_map: dict[str, str] = {}


class K8sConfig(BaseModel):
    """What the Kubernetes controller starts."""

    job_template: str | None = None


class Config(BaseModel):
    """For the controller."""

    timeout_seconds: int = 3600
    local: LocalConfig | None = None
    k8s: K8sConfig | None = None


class Metadata(BaseModel):
    """For whoever made the rollout: any further fields."""

    model_config = ConfigDict(extra="allow")

    batch_idx: int | None = None
    sample_idx_in_batch: int | None = None


class NewRollout(BaseModel):
    """One of ``POST /api/rollouts``."""

    input: Any
    is_train: bool = True
    config: Config | None = None
    metadata: Metadata | None = None
    rollout_id: RolloutId | None = None


class Status(BaseModel):
    """What a controller reports of a rollout; ``version`` grows with every change."""

    state: State = State.QUEUING
    k8s_job_name: str | None = None
    last_attempt_id: str | None = None
    error_message: str | None = None
    version: int = 1
    created_at: float
    updated_at: float


class StatusPatch(BaseModel):
    """The fields that a controller may change."""

    model_config = ConfigDict(extra="forbid")

    state: State | None = None
    k8s_job_name: str | None = None
    last_attempt_id: str | None = None
    error_message: str | None = None


class RolloutPatch(BaseModel):
    """``PATCH /api/rollouts/{id}``."""

    status: StatusPatch | None = None


class WireRollout(BaseModel):
    """A rollout as everybody there reads it."""

    rollout_id: str
    input: Any
    is_train: bool
    config: Config
    metadata: Metadata
    status: Status


class RolloutDetail(BaseModel):
    """``GET /api/rollouts/{id}``."""

    rollout: WireRollout
    attempts: list[str]


class TerminalItem(BaseModel):
    """A rollout that has ended, in short."""

    rollout_id: str
    state: State
    data_id: str
    is_train: bool


class TerminalPage(BaseModel):
    """``GET /api/rollouts/terminal``: pass ``next_after`` back for what ends later."""

    items: list[TerminalItem]
    next_after: int
    total_terminal: int


class NewEvent(BaseModel):
    """``POST …/events``: ``reward`` with a ``value``, or anything of the agent's own."""

    event_type: str
    data: dict[str, Any] = {}


class WireEvent(BaseModel):
    """A line of a rollout's history: ``model_request``, ``reward``, or of the agent's own."""

    event_type: str
    rollout_id: str
    attempt_id: str
    timestamp: float
    data: dict[str, Any]


class Model(BaseModel):
    """One of ``POST /api/models``."""

    model: str
    endpoint: str
    version: int = 0


class PauseAsked(BaseModel):
    """``POST /proxy/pause``."""

    retry_after_seconds: int = 5
    reason: str | None = None


class PauseState(BaseModel):
    """``GET /proxy/state``."""

    paused: bool
    retry_after_seconds: int
    reason: str | None
    inflight: int
