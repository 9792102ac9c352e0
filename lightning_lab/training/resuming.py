"""What a run had under way when it ended, however it ended: read from the store, which is the truth.

The checkpoint says how far the policy had come. Every group that no step before it consumed is taken up again:
finished rollouts as they are, with the log-probs of their tokens; rollouts that were still under way as a new attempt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_lab.records import Outcome, Rollout, RolloutState, Task
from lightning_lab.store import Store


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that the run had begun and not consumed."""

    id: str
    cursor: int
    """Its place in the order of tasks."""
    task: Task
    version: int
    """No token of it is older."""
    finished: tuple[Rollout, ...]
    lost: tuple[Rollout, ...]
    """Still under way when the run ended; as they are to be queued again."""
    missing: int
    """Rollouts that were never begun, or were cancelled."""


def group_name(run_id: str, cursor: int) -> str:
    """Ids of groups sort in the order in which they were begun."""
    return f"g-{run_id}-{cursor:06d}"


def open_groups(store: Store, run_id: str, *, step: int, n: int, version: int) -> list[OpenGroup]:
    """Groups of ``n`` rollouts that no step before ``step`` consumed, oldest first. ``version`` samples now."""
    members: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in store.rollouts(run_id, mode="train"):
        if rollout.group_id.startswith(f"g-{run_id}-") and (rollout.step is None or rollout.step >= step):
            members[rollout.group_id].append(rollout)
    return [_group(store, run_id, members[group_id], n, version) for group_id in sorted(members)]


def latest_version(store: Store, run_id: str) -> int:
    """The highest version that the run has published; versions are never used twice."""
    return max((int(event.data["version"]) for event in store.events(run_id=run_id, kind="policy")), default=0)


def _group(store: Store, run_id: str, rollouts: Sequence[Rollout], n: int, version: int) -> OpenGroup:
    kept = [rollout for rollout in rollouts if rollout.outcome is not Outcome.CANCELLED]
    finished = tuple(rollout for rollout in kept if rollout.finished_at is not None)
    lost = tuple(rollout for rollout in kept if rollout.finished_at is None)
    sampled = [call.versions.min() for rollout in finished for call in store.calls(rollout.id) if len(call.versions)]
    group_id = rollouts[0].group_id
    return OpenGroup(
        id=group_id,
        cursor=int(group_id.rpartition("-")[2]),
        task=rollouts[0].task,
        version=int(min(sampled, default=version)),
        finished=finished,
        lost=tuple(_again(rollout) for rollout in lost),
        missing=n - len(kept),
    )


def _again(rollout: Rollout) -> Rollout:
    return replace(
        rollout,
        attempt=rollout.attempt + 1,
        state=RolloutState.QUEUING,
        started_at=None,
        agent_started_at=None,
        step=None,
    )
