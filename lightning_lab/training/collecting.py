"""Submit groups of rollouts and get them back whole."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from enum import Enum
from queue import SimpleQueue

from ulid import ULID

from lightning_lab.controller.retries import NEVER, Retries
from lightning_lab.harnesses import Harness
from lightning_lab.records import Rollout, RolloutState, Sampling, Task
from lightning_lab.tasks import Grader
from lightning_lab.training.parts import RolloutController
from lightning_lab.training.resuming import OpenGroup

ABANDON_S = 10.0
"""How long cancelled rollouts may take to end before the run goes on without them."""
_RESUMED = 1 << 16
"""Places of rollouts that are begun again: apart from those that the earlier process began."""


class _Word(Enum):
    """What is told to who waits for rollouts."""

    WAKE = "wake"
    CANCEL = "cancel"


class CollectingCancelled(Exception):  # noqa: N818 - an order that was followed, not an error
    """Somebody cancelled the collection."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one task, all terminal, in the order in which they were submitted."""

    id: str
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """A rollout is terminal."""

    group_id: str
    group: Group | None
    """Its group, when it was the last one of that."""


class Collector:
    """`submit` groups and get each back when it is whole. `cancel` and `wake` may come from any thread."""

    def __init__(
        self,
        controller: RolloutController,
        run_id: str,
        harness: Harness,
        grader: Grader,
        *,
        mode: str,
        sampling: Sampling,
        retries: Retries = NEVER,
    ) -> None:
        self._controller = controller
        self._run_id = run_id
        self._harness = harness
        self._grader = grader
        self._mode = mode
        self._sampling = sampling
        self._retries = retries
        self._groups: dict[str, list[Future[Rollout]]] = {}
        self._left: dict[str, int] = {}
        self._group_of: dict[Future[Rollout], str] = {}
        self._rollout_ids: dict[Future[Rollout], str] = {}
        self._done: SimpleQueue[Future[Rollout] | _Word] = SimpleQueue()

    def submit(self, group_id: str, task: Task, n: int) -> None:
        """Queue n rollouts of one task."""
        self._begin(group_id, [self._new_rollout(group_id, task) for _ in range(n)])

    def take_up(self, group: OpenGroup) -> None:
        """Queue what a group lacks that an earlier process had begun."""
        missing = [self._new_rollout(group.id, group.task) for _ in range(group.missing)]
        self._begin(group.id, [*group.lost, *missing], group.finished, first=_RESUMED)

    def _begin(
        self, group_id: str, rollouts: Sequence[Rollout], finished: Sequence[Rollout] = (), *, first: int = 0
    ) -> None:
        futures = [_done(rollout) for rollout in finished]
        for place, rollout in enumerate(rollouts, first):
            sampling = self._sampling_of(group_id, place)
            futures.append(
                self._controller.submit(rollout, self._harness, self._grader, sampling=sampling, retries=self._retries)
            )
            self._rollout_ids[futures[-1]] = rollout.id
        self._groups[group_id] = futures
        self._left[group_id] = len(futures)
        for future in futures:
            self._group_of[future] = group_id
            future.add_done_callback(self._done.put)

    def completed(self) -> Iterator[Group]:
        """Groups, each as soon as its last rollout is terminal, until none is left. Raises `CollectingCancelled`."""
        while self._left:
            ended = self.next()
            if ended is not None and ended.group is not None:
                yield ended.group

    def next(self) -> Ended | None:
        """Wait for the next rollout to end; None when somebody called `wake`. Raises `CollectingCancelled`."""
        future = self._done.get()
        if future is _Word.WAKE:
            return None
        if isinstance(future, _Word):
            raise CollectingCancelled
        future.result()  # a controller that cannot go on ends the collection
        self._rollout_ids.pop(future, None)
        group_id = self._group_of.pop(future)
        self._left[group_id] -= 1
        if self._left[group_id]:
            return Ended(group_id, None)
        del self._left[group_id]
        return Ended(group_id, Group(group_id, tuple(other.result() for other in self._groups.pop(group_id))))

    def wake(self) -> None:
        """Have `next` return, now or when it is called."""
        self._done.put(_Word.WAKE)

    def cancel(self) -> None:
        """End `next` and `completed`, whose caller then abandons what is left."""
        self._done.put(_Word.CANCEL)

    def abandon(self) -> None:
        """Cancel every rollout that is not terminal, and give them a moment to end."""
        left = {future: rollout_id for future, rollout_id in self._rollout_ids.items() if not future.done()}
        for rollout_id in left.values():
            self._controller.cancel(rollout_id)
        wait(left, timeout=ABANDON_S)

    def _sampling_of(self, group_id: str, place: int) -> Sampling:
        """A seed of its own for each rollout: equal prompts with one seed would be one reply, n times."""
        if self._sampling.seed is None:
            return self._sampling
        which = f"{self._sampling.seed} {group_id.rpartition('-')[2]} {place}"
        return replace(self._sampling, seed=zlib.crc32(which.encode()) % 2**31)

    def _new_rollout(self, group_id: str, task: Task) -> Rollout:
        return Rollout(
            id=f"r-{ULID()}",
            run_id=self._run_id,
            group_id=group_id,
            task=task,
            harness=self._harness.info,
            mode=self._mode,
            state=RolloutState.QUEUING,
            created_at=time.time(),
        )


def _done(rollout: Rollout) -> Future[Rollout]:
    future: Future[Rollout] = Future()
    future.set_result(rollout)
    return future
