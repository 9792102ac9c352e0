"""Task sources: rows of a table, and the generators of reasoning-gym."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lightning_lab.records import Task
from lightning_lab.tasks.task_set import TaskError, TaskSet

_OVERSAMPLE = 4
"""How many times ``size`` reasoning-gym may generate to replace duplicate prompts."""


def from_rows(
    rows: Iterable[Mapping[str, Any]], *, prompt: str = "prompt", answer: str = "answer", source: str = "rows"
) -> TaskSet:
    """One task per row; ``prompt`` and ``answer`` name the columns, all others become fields (JSON values only).

    Raises `TaskError` for a row without a prompt and for a field that JSON cannot express.
    """
    return TaskSet(_from_row(row, number, prompt, answer, source) for number, row in enumerate(rows))


def reasoning_gym(dataset: str, size: int, *, seed: int = 0, **config: Any) -> TaskSet:
    """``size`` tasks with distinct prompts of a reasoning-gym dataset, the same for the same seed.

    ``config`` goes to the dataset. Duplicates are removed and replaced; where the dataset has fewer distinct prompts,
    the set is smaller and a warning says so. Raises `TaskError` for an unknown dataset or a setting that it refuses.
    """
    source = f"reasoning_gym/{dataset}"
    tasks: dict[str, Task] = {}
    for item in _generate(dataset, size * _OVERSAMPLE, seed, config):
        task = _task(str(item["question"]), item["answer"], source, _jsonable(item.get("metadata", {})))
        tasks.setdefault(task.prompt, task)
        if len(tasks) == size:
            break
    if len(tasks) < size:
        warnings.warn(f"{source} gave {len(tasks)} distinct prompts, fewer than the {size} asked for.", stacklevel=2)
    return TaskSet(tasks.values())


def _generate(dataset: str, size: int, seed: int, config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    try:
        import reasoning_gym as library
    except ImportError as error:
        raise TaskError("reasoning-gym is not installed: pip install 'lightning-lab[quickstart]'.") from error
    try:
        items = library.create_dataset(dataset, size=size, seed=seed, **config)
    except (ValueError, TypeError, AssertionError) as error:
        raise TaskError(f"reasoning-gym cannot make {dataset!r} with {dict(config)}: {error}") from error
    return (items[index] for index in range(size))


def _from_row(row: Mapping[str, Any], number: int, prompt: str, answer: str, source: str) -> Task:
    if not isinstance(row.get(prompt), str):
        raise TaskError(f"Row {number} has no text in column {prompt!r}; it has {', '.join(map(str, row))}.")
    fields = {str(name): value for name, value in row.items() if name not in (prompt, answer)}
    for name, value in fields.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TaskError(f"Row {number}, column {name!r}: {type(value).__name__} is no JSON value.") from error
    return _task(row[prompt], row.get(answer), source, fields)


def _task(prompt: str, answer: Any, source: str, fields: Mapping[str, Any]) -> Task:
    content = json.dumps([source, prompt, answer, fields], sort_keys=True, default=str)
    identity = hashlib.sha256(content.encode()).hexdigest()[:12]
    return Task(id=f"{source}:{identity}", prompt=prompt, answer=answer, source=source, fields=fields)


def _jsonable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """reasoning-gym's metadata may hold any Python value; what JSON cannot express becomes text."""
    value: dict[str, Any] = json.loads(json.dumps(dict(fields), default=str, skipkeys=True))
    return value
