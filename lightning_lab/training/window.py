"""Which groups are under way, and which of them an update consumes: the arithmetic of the two schedules.

Invariants, whatever the order in which groups complete:

* a group is consumed whole, once, and never given up;
* no more rollouts run at a time than ``in_flight`` groups have, and no fewer while a whole group more would fit;
* the oldest groups are consumed first;
* no group is consumed when a token of it may be older than ``max_staleness`` publishes;
* after the last step nothing is left under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["sync", "collocated"]


@dataclass(frozen=True, slots=True)
class Place:
    """A group in the window."""

    group_id: str
    version: int
    """The policy version when it was submitted: none of its tokens is older."""


class Window:
    """Groups that were submitted and not yet consumed, oldest first.

    ``sync``: ``train`` groups per step, all of one version; the next ones start after the update.
    ``collocated``: as many rollouts as ``in_flight`` groups of ``n`` have are under way at any time, and an update
    starts when ``train`` groups are complete; the unfinished ones go on across it. Counted are rollouts: a group of
    which one straggler is left holds one place, not ``n``.
    """

    def __init__(self, schedule: Schedule, *, train: int, in_flight: int, n: int, max_staleness: int | None) -> None:
        self._schedule = schedule
        self._train = train
        self._places = in_flight * n
        self._n = n
        self._left: dict[str, int] = {}
        """Rollouts of unfinished groups that are under way."""
        self._max_staleness = max_staleness
        self._unfinished: dict[str, Place] = {}
        self._complete: dict[str, Place] = {}

    def __len__(self) -> int:
        return len(self._unfinished) + len(self._complete)

    def room(self, steps_left: int) -> int:
        """How many groups to submit now, so that the last of ``steps_left`` steps leaves nothing over."""
        free = (self._places - sum(self._left.values())) // self._n
        wanted = self._train - len(self) if self._schedule == "sync" else free
        return max(0, min(wanted, steps_left * self._train - len(self)))

    def submitted(self, group_id: str, version: int) -> None:
        """A group is under way. Ids sort in the order in which groups were submitted."""
        self._unfinished[group_id] = Place(group_id, version)
        self._left[group_id] = self._n

    def ended(self, group_id: str) -> None:
        """One more rollout of a group is terminal."""
        self._left[group_id] -= 1
        if not self._left[group_id]:
            del self._left[group_id]
            self._complete[group_id] = self._unfinished.pop(group_id)

    @property
    def enough(self) -> bool:
        """Whether an update has what it needs, if only no group must be waited for."""
        return len(self._complete) >= self._train

    def too_old_to_leave(self, version: int) -> list[str]:
        """Unfinished groups that an update at ``version`` would make older than allowed: wait for them first."""
        return [place.group_id for place in self._unfinished.values() if self._expires(place, version)]

    def take(self, version: int) -> Sequence[str]:
        """Remove what the update at ``version`` consumes: the oldest complete groups, oldest first.

        ``train`` of them, and more only where another would be too old for the next update.
        """
        oldest = sorted(self._complete.values(), key=lambda place: place.group_id)
        due = [place for i, place in enumerate(oldest) if i < self._train or self._expires(place, version)]
        for place in due:
            del self._complete[place.group_id]
        return [place.group_id for place in due]

    def _expires(self, place: Place, version: int) -> bool:
        """Whether the group is too old for the update after this one, which publishes ``version`` + 1."""
        return self._max_staleness is not None and version + 1 - place.version > self._max_staleness
