"""Clients that lost an answer send the same request again: one call, not two.

An answer whose client went away before the last byte is sent again as it is, without sampling; so is one whose delivery
looked well, or is still under way, when the client itself says that it retries. A call that broke off is superseded by
its retry. Two equal requests of which none was lost are two calls, however slowly the first answer is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from lightning_lab.gateway.errors import bad_request
from lightning_lab.gateway.protocols.fields import deeper
from lightning_lab.gateway.protocols.wire import Choice, Head, Request

_MOST = 32
"""Answers, and broken calls, that are remembered for one rollout."""
_TRANSPORT = frozenset({"stream", "stream_options"})
_FORGOTTEN = Request(model="", messages=())


@dataclass(slots=True)
class Answered:
    """A complete answer that may have to be sent again."""

    head: Head
    choices: Sequence[Choice]
    call_ids: Sequence[str]
    lost: bool = False
    """The client went away before the last byte."""

    def settle(self, *, lost: bool) -> None:
        """Its writing has ended; the request's memory is given back."""
        self.lost = lost
        self.head.request = _FORGOTTEN


def digest(protocol: str, body: Mapping[str, Any]) -> int:
    """Equal for equal requests, however they want to be answered. Python's hash is keyed and 64 bits wide.

    Raises `Fault` 400 for a body that is nested so deeply that nothing could be written about it.
    """
    asked = {key: value for key, value in body.items() if key not in _TRANSPORT}
    try:
        return hash((protocol, orjson.dumps(deeper(asked))))
    except TypeError:
        raise bad_request("The body is nested too deeply, by more than 200 levels.", code="invalid_json") from None


class Retries:
    """The requests of one rollout attempt that may come again. Only on the event loop."""

    def __init__(self) -> None:
        self._answered: OrderedDict[int, Answered] = OrderedDict()
        self._broken: OrderedDict[int, None] = OrderedDict()

    def answered(self, request: int, head: Head, choices: Sequence[Choice], call_ids: Sequence[str]) -> Answered:
        """The request has its answer; what becomes of it is told by `Answered.lost`."""
        answer = Answered(head, choices, call_ids)
        self._answered[request] = answer
        self._answered.move_to_end(request)
        if len(self._answered) > _MOST:
            self._answered.popitem(last=False)
        return answer

    def broke(self, request: int) -> None:
        """The request ended without an answer."""
        self._broken[request] = None
        if len(self._broken) > _MOST:
            self._broken.popitem(last=False)

    def replay(self, request: int, *, retry: bool) -> Answered | None:
        """The answer to send again, if the request is a retry of a lost one."""
        answer = self._answered.get(request)
        if answer is None or not (retry or answer.lost):
            return None
        answer.lost = False  # it is on its way again
        return answer

    def supersedes(self, request: int) -> bool:
        """Whether the request takes the place of one that broke off: told once."""
        return self._broken.pop(request, self) is None
