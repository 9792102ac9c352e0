"""What the cluster says of one attempt, and what that means. Pure functions over the API's JSON objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_lab.records import Outcome

Object = Mapping[str, Any]

_NO_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_NODE_GAVE_UP = frozenset({"Evicted", "Preempting", "Preempted", "Terminated", "NodeShutdown", "Shutdown"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The agent's process ended by itself, or was killed for its memory."""

    code: int
    oom: bool
    message: str
    """What it wrote to its termination log; of a failure without such words, the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The cluster ended it, or could not begin."""

    outcome: Outcome
    error: str


def verdict(job: Object | None, pod: Object | None) -> Exit | Fault | None:
    """How the attempt ended; None while it goes on, or while its pod's last word is missing."""
    if pod is not None and (ended := _pod_verdict(pod)) is not None:
        return ended
    failed = _condition(job, "Failed") or _condition(job, "FailureTarget")
    if failed is not None and failed.get("reason") == "DeadlineExceeded":
        return Fault(outcome=Outcome.TIMEOUT, error=f"The Job's activeDeadlineSeconds are over: {_words(failed)}")
    return None


def over(job: Object | None) -> bool:
    """Whether the Job is finished: its pod should have said how, or is gone."""
    return _condition(job, "Failed") is not None or _condition(job, "Complete") is not None


def lost(job: Object | None) -> Fault:
    """A Job that is gone, or is finished without any pod that tells of it."""
    if job is None:
        return Fault(outcome=Outcome.LOST, error="The Job vanished: somebody or something removed it from the cluster.")
    told = _condition(job, "Failed") or _condition(job, "Complete") or {}
    return Fault(outcome=Outcome.LOST, error=f"The Job is finished, its pod is gone: {_words(told)}")


def started(pod: Object | None) -> bool:
    """Whether the agent's container has begun."""
    return pod is not None and any(name in _agent(pod).get("state", {}) for name in ("running", "terminated"))


def is_terminal(pod: Object | None) -> bool:
    """Whether no container of the pod runs any more."""
    return pod is not None and pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def not_started(job: Object | None, pod: Object | None, limit_s: float) -> Fault:
    """Why nothing began in time, in the cluster's own words."""
    return Fault(outcome=Outcome.BOOT_TIMEOUT, error=f"No agent began within {limit_s:g} s. {_hindrance(job, pod)}")


def _hindrance(job: Object | None, pod: Object | None) -> str:
    if pod is None:
        told = _condition(job, "FailureTarget") or _condition(job, "Suspended")
        return f"The Job has no pod: {_words(told)}" if told else "The Job has no pod: is a quota used up?"
    scheduled = _find(pod.get("status", {}).get("conditions"), "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        return _words(scheduled)
    for container in _containers(pod):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return _words(waiting)
    return f"The pod's phase is {pod.get('status', {}).get('phase', 'unknown')}."


def _pod_verdict(pod: Object) -> Exit | Fault | None:
    status = pod.get("status", {})
    reason = status.get("reason", "")
    disrupted = _find(status.get("conditions"), "DisruptionTarget")
    failed = status.get("phase") == "Failed"
    if reason in _NODE_GAVE_UP or (failed and disrupted is not None and disrupted.get("status") == "True"):
        told = status if status.get("message") or disrupted is None else disrupted
        return Fault(outcome=Outcome.EVICTED, error=_words(told))
    if reason == "DeadlineExceeded":
        return Fault(outcome=Outcome.TIMEOUT, error=_words(status))
    ended = _agent(pod).get("state", {}).get("terminated")
    if ended is not None:
        return Exit(
            code=int(ended.get("exitCode", 0)),
            oom=ended.get("reason") == "OOMKilled",
            message=ended.get("message", ""),
        )
    for container in _containers(pod):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _NO_IMAGE:
            return Fault(outcome=Outcome.IMAGE_PULL, error=f"{container.get('image', '')}: {_words(waiting)}")
    if failed:
        return Fault(outcome=Outcome.LOST, error=f"The pod failed: {_words(status)}")
    return None


def _agent(pod: Object) -> Object:
    """The state of the agent's container: the first of the pod's spec, wherever the status lists it."""
    containers = pod.get("spec", {}).get("containers") or [{}]
    name = containers[0].get("name", "")
    known = pod.get("status", {}).get("containerStatuses") or []
    return next((each for each in known if each.get("name") == name), {})


def _containers(pod: Object) -> list[Object]:
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _condition(job: Object | None, kind: str) -> Object | None:
    found = _find((job or {}).get("status", {}).get("conditions"), kind)
    return found if found is not None and found.get("status") == "True" else None


def _find(conditions: Iterable[Object] | None, kind: str) -> Object | None:
    return next((each for each in conditions or () if each.get("type") == kind), None)


def _words(told: Object) -> str:
    """``Reason: message``, as far as they are there."""
    return ": ".join(part for part in (told.get("reason", ""), told.get("message", "")) if part) or "no reason given"
