"""A sequence of tasks that can be split without a prompt appearing on both sides."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import overload

from lightning_lab.records import Task


class TaskError(ValueError):
    """Tasks cannot be made or split as asked; the message says why and what to do."""


class TaskSet(Sequence[Task]):
    """Tasks in order. An index gives a task, a slice gives a `TaskSet`."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = tuple(tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskSet: ...
    def __getitem__(self, index: int | slice) -> Task | TaskSet:
        return TaskSet(self._tasks[index]) if isinstance(index, slice) else self._tasks[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskSet) and self._tasks == other._tasks

    def __hash__(self) -> int:
        return hash(tuple(task.id for task in self._tasks))

    def __repr__(self) -> str:
        sources = ", ".join(sorted({task.source for task in self._tasks if task.source}))
        return f"TaskSet({len(self)} tasks{' of ' + sources if sources else ''})"

    def split(self, fraction: float) -> tuple[TaskSet, TaskSet]:
        """Two sets without a common prompt, the first with ``fraction`` of the distinct prompts.

        Which side a prompt falls on depends on the prompts alone, not on their order or on a seed, so the split is
        the same in every process. Both sides keep the order of this set. Raises `TaskError` unless both get a prompt.

        Example: 600 tasks with distinct prompts, ``split(0.9)`` → 540 and 60.
        """
        prompts = sorted({_canonical(task.prompt) for task in self._tasks}, key=_rank)
        first = round(fraction * len(prompts))
        if not 0 < first < len(prompts):
            raise TaskError(f"split({fraction}) of {len(prompts)} distinct prompts leaves one side empty.")
        chosen = set(prompts[:first])
        sides: tuple[list[Task], list[Task]] = ([], [])
        for task in self._tasks:
            sides[_canonical(task.prompt) not in chosen].append(task)
        return TaskSet(sides[0]), TaskSet(sides[1])

    def shuffled(self, seed: int) -> TaskSet:
        """The same tasks in an order that depends on the seed alone."""
        tasks = list(self._tasks)
        random.Random(seed).shuffle(tasks)
        return TaskSet(tasks)


def _canonical(prompt: str) -> str:
    """Prompts that differ in white space only are the same prompt."""
    return " ".join(prompt.split())


def _rank(prompt: str) -> bytes:
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest()
