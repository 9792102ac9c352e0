"""What a rollout's key may not do: every try is refused, and recorded as a ``tamper`` event of its rollout.

An agent that asks for a route of some vendor which is not served here is no tampering; one that names another rollout,
or a route on which rewards are posted or rollouts are steered, is. The event's data: ``attempt``, ``what``
(``reward``, ``control``, ``other_rollout`` or ``second_reward``), ``method``, ``path``, ``status`` of the refusal, and
``message``, one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from lightning_lab.gateway.auth import Grants
from lightning_lab.gateway.errors import Fault

_REWARD = frozenset({"reward", "rewards", "event", "events"})
_CONTROL = frozenset({"rollout", "rollouts", "attempt", "attempts", "proxy", "pause", "resume"})
_LIMIT = 50
"""Tries of one attempt that are recorded: whoever tries without end must not fill the disk."""
_PATH = 200
_DOES = {
    "reward": "tried to post or read rewards",
    "control": "tried to steer rollouts or the gateway",
    "other_rollout": "used its key for another rollout",
    "second_reward": "posted another reward for an attempt that has one",
}


class EventStore(Protocol):
    def put_event(self, kind: str, run_id: str, subject: str = "", data: Mapping[str, Any] = ...) -> Future[int]: ...


class Watch:
    """Records what refused requests were after. Thread-safe."""

    def __init__(self, grants: Grants, store: EventStore) -> None:
        self._grants = grants
        self._store = store

    def refused(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], fault: Fault) -> None:
        """A request that the gateway refused."""
        if fault.code in ("attribution_conflict", "rollout_not_found"):
            self.note("other_rollout", method, path, headers, fault.status)
        elif fault.code == "unknown_url" and (what := _aim(path)):
            self.note(what, method, path, headers, fault.status)

    def elsewhere(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], status: int) -> None:
        """A request that another server of the lab refused, because it has a key of its own."""
        self.note(_aim(path) or "control", method, path, headers, status)

    def note(self, what: str, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], status: int) -> None:
        """Record it, if the request carries a rollout's key."""
        grant = self._grants.owner(headers)
        if grant is None or grant.tampered >= _LIMIT:
            return
        grant.tampered += 1
        data = {"attempt": grant.attempt, **tampering(what, method, path, status)}
        self._store.put_event("tamper", "", grant.rollout_id, data)


def tampering(what: str, method: str, path: str, status: int) -> dict[str, Any]:
    """The event's data, but for the attempt."""
    path = path.encode("utf-8", "replace").decode()[:_PATH]
    message = f"The agent {_DOES[what]}: {method} {path} was refused ({status})."
    return {"what": what, "method": method, "path": path, "status": status, "message": message}


def _aim(path: str) -> str:
    """What an unknown route is for; empty if it has nothing to do with the lab."""
    segments = path.lower().split("/")
    if segments[1:2] == ["rollout"]:
        segments = segments[3:]  # the rollout's own way to the model
    return "reward" if _REWARD.intersection(segments) else "control" if _CONTROL.intersection(segments) else ""
