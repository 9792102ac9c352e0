"""The nouns of Lightning Lab: plain, immutable data. No behaviour, no imports from the rest.

Arrays are one-dimensional numpy arrays. Times are Unix seconds (float, UTC). Ids are strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
"""Token ids, or policy versions, shape [n]."""
Floats = npt.NDArray[np.float32]
"""Per-token numbers, shape [n]; NaN stands for "the engine gave none"."""
Mask = npt.NDArray[np.bool_]
"""Per-token booleans, shape [n]."""

SCHEMA_VERSION = 1
"""Version of everything written to disk or sent to the panel."""


class RolloutState(StrEnum):
    """Where a rollout is. The last three are final."""

    QUEUING = "queuing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL_STATES = frozenset({RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.CANCELLED})


class Outcome(StrEnum):
    """Why a rollout ended."""

    COMPLETED = "completed"
    AGENT_ERROR = "agent_error"
    TIMEOUT = "timeout"
    BOOT_TIMEOUT = "boot_timeout"
    OOM = "oom"
    IMAGE_PULL = "image_pull"
    EVICTED = "evicted"
    CONTEXT_OVERFLOW = "context_overflow"
    GRADER_ERROR = "grader_error"
    POLICY_ERROR = "policy_error"
    CANCELLED = "cancelled"
    LOST = "lost"


INFRASTRUCTURE_OUTCOMES = frozenset(
    {
        Outcome.BOOT_TIMEOUT,
        Outcome.OOM,
        Outcome.IMAGE_PULL,
        Outcome.EVICTED,
        Outcome.GRADER_ERROR,
        Outcome.POLICY_ERROR,
        Outcome.CANCELLED,
        Outcome.LOST,
    }
)
"""Outcomes that say nothing about the agent: never turned into reward 0, left out of group statistics."""


class BreakCause(StrEnum):
    """Why a call could not continue an open sample."""

    RETOKENIZED = "retokenized"
    TEMPLATE = "template"
    REASONING_DROPPED = "reasoning_dropped"
    TOOL_ARGS = "tool_args"
    EDITED = "edited"
    TOOLS_CHANGED = "tools_changed"
    SYSTEM_CHANGED = "system_changed"
    COMPACTED = "compacted"
    NEW_THREAD = "new_thread"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """What the training loop is doing."""

    IDLE = "idle"
    COLLECTING = "collecting"
    CLOSING = "closing"
    DRAINING = "draining"
    UPDATING = "updating"
    PUBLISHING = "publishing"
    STALENESS_WAIT = "staleness_wait"


PauseMode = Literal["wait", "interrupt"]
"""What a pause does with calls in flight: let them finish, or stop them to go on from the same tokens afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One input that a harness is run on: a dataset row."""

    id: str
    """Stable across processes: derived from the source and the content."""
    prompt: str
    answer: Any = None
    source: str = ""
    """Where it comes from, e.g. ``reasoning_gym/chain_sum``."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further columns; JSON values only. Commands may use ``{name}`` in their argv."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """What a harness left behind; the grader's second argument."""

    output: Any
    """The harness function's return value (JSON value or text), or a command's stdout."""
    exit_code: int
    workdir: str
    """A copy of the working directory, made after the agent was gone."""
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessInfo:
    """Which agent program ran: its name and the hash that versions it."""

    name: str
    version: str
    kind: str
    """``function``, ``command`` or ``external`` (another controller runs it)."""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters. What a harness asked for and what the run used are both recorded."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation, in the canonical form that every wire protocol maps to.

    ``tool_calls`` are ``{"id", "name", "arguments"}`` with ``arguments`` as the text that was said. ``images`` are
    ``{"url", "after"}``, some with ``detail``: the address as it was sent, a ``data:`` URL where the image itself came,
    and how many characters of the content stand before it.
    """

    role: str
    """``system``, ``user``, ``assistant`` or ``tool``."""
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, str], ...] = ()
    tool_call_id: str = ""
    name: str = ""
    images: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request-response pair with the model.

    ``logprobs`` and ``versions`` are aligned with ``sampled_ids``; ``logprobs`` holds NaN where the engine gave
    none. A request with n > 1 is n calls with one ``request_id``.
    """

    id: str
    rollout_id: str
    attempt: int
    ordinal: int
    """Position among the rollout's calls, in order of arrival."""
    request_id: str
    protocol: str
    """``chat``, ``completions``, ``responses`` or ``messages``."""
    model: str
    """The name that the harness asked for."""
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    reply: Message
    prompt_ids: Ids
    sampled_ids: Ids
    logprobs: Floats
    versions: Ids
    finish_reason: str
    asked: Mapping[str, Any]
    """Sampling fields of the harness's request, as sent."""
    used: Sampling
    arrived_at: float
    held_s: float
    """Seconds spent waiting for admission."""
    started_at: float
    finished_at: float
    delivered: bool
    minted_ids: tuple[str, ...] = ()
    """Ids the gateway made up for this reply (tool-call ids, response ids): their echo proves delivery."""
    kept_replies: int = 0
    """Earlier replies that the gateway put into this prompt with the ids that were sampled, new in the conversation."""
    left_replies: tuple[str, ...] = ()
    """Calls whose replies the conversation repeats with another text, so that their ids could not be put back."""
    thread: str = "main"
    parent_id: str | None = None
    kind: str = "main"
    """``main``, ``sub_agent``, ``side``, ``compaction``, ``retry`` or ``undelivered``."""
    error: str = ""
    request_extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request that the gateway does not know: kept, never refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One execution of a harness on one task."""

    id: str
    run_id: str
    group_id: str
    task: Task
    harness: HarnessInfo
    mode: str
    """``train``, ``eval`` or ``single`` (started by ``lab.run``)."""
    state: RolloutState
    attempt: int = 1
    outcome: Outcome | None = None
    reward: float | None = None
    """Finite, or None where there is no valid reward."""
    verdict: str = ""
    """The grader's words, or why there is no reward."""
    output: str = ""
    error: str = ""
    """The agent's traceback or the launcher's message."""
    stdout: str = ""
    stderr: str = ""
    """Bounded tails of what the agent printed."""
    exit_code: int | None = None
    created_at: float = 0.0
    started_at: float | None = None
    agent_started_at: float | None = None
    """When the first line of agent code ran."""
    finished_at: float | None = None
    step: int | None = None
    """The optimiser step that consumed it."""
    advantage: float | None = None
    weight: float | None = None
    """Its share of the step's loss; the shares of one step sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A call's sampled tokens inside a sample: ``sample.ids[start:stop]``."""

    call_id: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training row, made of one or more calls of one rollout. All arrays have the length of ``ids``."""

    rollout_id: str
    ids: Ids
    mask: Mask
    """True where the token was sampled and trains."""
    logprobs: Floats
    """The sampler's log-probs where ``mask`` is True; 0 elsewhere."""
    versions: Ids
    """The sampling policy version where ``mask`` is True; -1 elsewhere."""
    segments: tuple[Segment, ...]
    masked: Mapping[str, int] = field(default_factory=dict)
    """Sampled tokens that do not train here, counted by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A place where a call could not continue an open sample."""

    rollout_id: str
    call_id: str
    previous_call_id: str
    index: int
    """First differing position in the prompt ids."""
    cause: BreakCause
    before: str
    """Decoded window of the open sample around ``index``."""
    after: str
    """Decoded window of the call's prompt around ``index``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimiser update and what it consumed."""

    run_id: str
    index: int
    version: int
    """The policy version that this step published."""
    rollout_ids: Sequence[str]
    metrics: Mapping[str, float]
    started_at: float
    finished_at: float
    skipped: str = ""
    """Why no update was made (e.g. ``no_signal``), or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One stored experiment."""

    id: str
    kind: str
    """``fit`` or ``single``."""
    state: str
    """``running``, ``finished``, ``stopped`` or ``failed``."""
    settings: Mapping[str, Any]
    created_at: float
    finished_at: float | None = None
    reason: str = ""
    """Why it stopped, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the durable log. ``kind`` names the change, ``data`` is a JSON object."""

    seq: int
    at: float
    kind: str
    run_id: str
    subject: str
    """Id of the rollout, call or step that changed; empty for the run itself."""
    data: Mapping[str, Any]
