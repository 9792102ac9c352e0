"""The request side of the panel: drill-down, buttons, selection. Every failure is a typed reply."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_lab.records import SCHEMA_VERSION

log = logging.getLogger(__name__)


class RequestError(Exception):
    """A request that cannot be done: what happened, and what to do."""

    def __init__(self, message: str, action: str = "") -> None:
        super().__init__(message)
        self.action = action


Handler = Callable[[Mapping[str, Any]], Any]
"""Params → the result as JSON, or a `Reply` whose data is the result, where columns go with it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes over the wire: JSON, and the binary columns that it names by their place."""

    data: dict[str, Any]
    buffers: Sequence[bytes] = ()


class Requests:
    """Maps ``{"id", "method", "params"}`` to ``{"id", "ok", "result"|"error"}``; never raises."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    def answer(self, data: Any) -> Reply:
        number = data.get("id") if isinstance(data, Mapping) else None
        try:
            result = self._call(data)
            columns = result if isinstance(result, Reply) else Reply(result)
            return Reply({"id": number, "ok": True, "result": columns.data}, columns.buffers)
        except RequestError as error:
            return _refusal(number, str(error), error.action)
        except Exception as error:
            log.exception("A request of the panel failed")
            return _refusal(number, f"{type(error).__name__}: {error}", "The kernel's log has the traceback.")

    def _call(self, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("method"), str):
            raise RequestError("A request needs a method.", "Update the extension: pip install -U lightning-lab")
        params = data.get("params", {})
        if not isinstance(params, Mapping):
            raise RequestError("The params of a request are an object.")
        try:
            handler = self._handlers[data["method"]]
        except KeyError:
            raise RequestError(
                f"This kernel does not know the request {data['method']!r}.",
                "The kernel's lightning-lab and the extension differ: install the same version of both.",
            ) from None
        return handler(params)


def check_schema(params: Mapping[str, Any]) -> None:
    """The version handshake. Raises `RequestError` when front end and kernel speak different schemas."""
    if params.get("schema") != SCHEMA_VERSION:
        raise RequestError(
            f"The extension speaks schema {params.get('schema')}, the kernel's lightning-lab speaks {SCHEMA_VERSION}.",
            "Install the same version of lightning-lab in the JupyterLab and in the kernel environment.",
        )


def _refusal(number: Any, message: str, action: str) -> Reply:
    return Reply({"id": number, "ok": False, "error": {"message": message, "action": action}})
