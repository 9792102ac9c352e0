"""Functions on their way to another process: by cloudpickle, over private sockets only, never into a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle

from lightning_lab.harnesses.source import functions_in, named_values


class ShippingError(TypeError):
    """A function cannot be sent to another process; the message names what stands in the way."""


def ship(function: Callable[..., Any], *arguments: Any, what: str) -> bytes:
    """``(function, *arguments)`` as bytes; ``what`` names it in the error. Raises `ShippingError`."""
    try:
        return _pickled((function, *arguments))
    except Exception as error:
        raise ShippingError(
            f"{what} cannot be sent to its own process: {_culprit(function, arguments)} cannot be pickled ({error}). "
            "Create it inside the function instead of outside."
        ) from error


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle without its anonymous code: a traceback from the other process names the cell and shows the line."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, CodeType):
            return super().reducer_override(value)
        make, parts = self.dispatch_table[CodeType](value)
        return make, tuple(value.co_filename if part == "<dynamic-code>" else part for part in parts)


def _pickled(value: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _culprit(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    for inner in functions_in(function):
        for name, value in named_values(inner).items():
            if not _can_ship(value):
                return f"{name!r} (a {type(value).__name__})"
    for value in arguments:
        if not _can_ship(value):
            return f"its argument {type(value).__name__}"
    return f"{getattr(function, '__qualname__', type(function).__name__)!r} itself"


def _can_ship(value: Any) -> bool:
    try:
        _pickled(value)
    except Exception:
        return False
    return True
