"""What is selected in the panel: the one selection that drives every view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lightning_lab.notebook.requests import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """run › step › group › rollout › call › token; None where nothing narrower is selected."""

    run: str | None = None
    step: int | None = None
    group: str | None = None
    rollout: str | None = None
    call: str | None = None
    token: int | None = None

    def __repr__(self) -> str:
        chosen = {name: value for name, value in asdict(self).items() if value is not None}
        return f"Selection({', '.join(f'{name}={value!r}' for name, value in chosen.items())})"


def selection_from(params: Mapping[str, Any]) -> Selection:
    """Read a panel's selection. Raises `RequestError` for unknown fields and wrong types."""
    values = params.get("selection", params)
    if not isinstance(values, Mapping):
        raise RequestError("A selection is an object.")
    numbers = {"step", "token"}
    known = {field.name for field in fields(Selection)}
    for name, value in values.items():
        kind = int if name in numbers else str
        if name not in known or not (value is None or (isinstance(value, kind) and not isinstance(value, bool))):
            raise RequestError(f"A selection has no {name} = {value!r}.")
    return Selection(**values)
