"""The events of an endpoint's answer, read into just what a reply needs.

Ids and log-probs are most of an answer: a prompt's ids are read straight into an array, and of a sampled token only
its text and the number. Everything else may have any type until it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Annotated, Any

import msgspec
import numpy as np

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai.faults import message_of
from lightning_lab.records import Ids

_DONE = b"[DONE]"
_NUMERALS = b"0123456789-, \t\r\n"
_LARGEST = np.iinfo(np.int32).max
_NUMBERS = {float, int, type(None)}
_NO_IDS: Ids = np.empty(0, np.int32)
_NOTHING = msgspec.Raw(b"")
_UNTOLD = (_NOTHING, msgspec.Raw(b"null"))


class Choice(msgspec.Struct, gc=False):
    """The first choice of an event; of a stream, its next piece."""

    delta: Any = None
    message: Any = None
    text: Any = None
    finish_reason: Any = None
    stop_reason: Any = None
    prompt_token_ids: msgspec.Raw = _NOTHING
    token_ids: msgspec.Raw = _NOTHING
    logprobs: msgspec.Raw = _NOTHING


class Event(msgspec.Struct, gc=False):
    """One JSON object of an answer."""

    choices: list[Choice] | None = None
    prompt_token_ids: msgspec.Raw = _NOTHING
    usage: Any = None
    error: Any = None


class Token(msgspec.Struct, gc=False):
    """A sampled token, as far as it is told of."""

    token: str | None = None
    logprob: float | None = None


class _Content(msgspec.Struct, gc=False):
    content: list[Token] | None = None
    token_logprobs: msgspec.Raw = _NOTHING


_EVENT = msgspec.json.Decoder(Event)
_CONTENT = msgspec.json.Decoder(_Content)
_IDS = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=-1, le=int(_LARGEST))] | None])


class EventReader:
    """Bytes as they come → events. ``kind``: the answer's content type; ``where`` begins the words of an error."""

    def __init__(self, kind: str, where: str) -> None:
        self.done = False
        """Whether the server said that nothing else comes."""
        self._kind = kind.partition(";")[0].strip().lower()
        self._where = where
        self._unfinished: list[bytes] = []
        """Lines have any length: the ids of a long prompt come in one."""

    def read(self, part: bytes) -> Iterator[Event]:
        """The events that ``part`` completes."""
        self._unfinished.append(part)
        if self._kind != "text/event-stream" or b"\n" not in part:
            return
        *lines, rest = b"".join(self._unfinished).split(b"\n")
        self._unfinished = [rest]
        for line in lines:
            if line.startswith(b"data:"):  # others are comments and names of events
                data = line[5:].strip()
                if data == _DONE:
                    self.done = True
                    return
                if data:
                    yield self._event(data)

    def rest(self) -> Iterator[Event]:
        """What the end of the answer completes: all of it, where it is no stream."""
        last = b"".join(self._unfinished)
        if self._kind == "text/event-stream":
            last = last.removeprefix(b"data:").strip()
            if not last or last == _DONE:
                return
        elif self._kind != "application/json":
            raise PolicyError(
                f"{self._where} answered {self._kind or 'something of no type'}, which is no model's reply: "
                f"{message_of(last, '')} Is base_url right?"
            )
        yield self._event(last)

    def _event(self, data: bytes) -> Event:
        try:
            return _EVENT.decode(data)
        except msgspec.ValidationError as error:
            raise PolicyError(f"{self._where} sent JSON that is no model's reply: {error}") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise PolicyError(f"{self._where} sent something that is no JSON: {error}") from None


def prompt_ids_of(told: msgspec.Raw) -> Ids | None:
    """Shape [n], -1 for null; None where nothing was told. Raises `PolicyError` for what is no id."""
    if told in _UNTOLD:
        return None
    inside = bytes(told)[1:-1]
    if inside.translate(None, _NUMERALS):
        return id_array(sampled_ids_of(told))
    if not inside.strip():
        return _NO_IDS
    ids = np.fromstring(inside, np.int64, sep=",")
    if ids.min() < -1 or ids.max() > _LARGEST:
        raise _no_ids()
    return ids.astype(np.int32)


def sampled_ids_of(told: msgspec.Raw) -> list[int | None]:
    """Of one event: few, and soon joined with others. Raises `PolicyError` for what is no id."""
    if told in _UNTOLD:
        return []
    try:
        return _IDS.decode(told)
    except msgspec.ValidationError:
        raise _no_ids() from None


def id_array(ids: list[int | None]) -> Ids:
    """Shape [n], -1 for None."""
    try:
        return np.array(ids, np.int32)
    except TypeError:
        return np.array([-1 if one is None else one for one in ids], np.int32)


def tokens_of(told: msgspec.Raw) -> list[Token] | None:
    """Texts and log-probs, in the shape of Chat Completions or of Completions; None where nothing was told."""
    if told in _UNTOLD:
        return None
    try:
        said = _CONTENT.decode(told)
    except msgspec.ValidationError:
        return _odd_tokens(told)
    if said.content is not None:
        return said.content
    return _odd_tokens(told) if said.token_logprobs not in _UNTOLD else None


def text_of(said: Any) -> str:
    """Raises `PolicyError` for what is no text."""
    if not isinstance(said, str):
        raise PolicyError(f"The endpoint said {type(said).__name__} where a text was expected.")
    return said


def _odd_tokens(told: msgspec.Raw) -> list[Token] | None:
    """The shape of Completions, and what is not quite in one of the two."""
    said = msgspec.json.decode(told)
    if not said:
        return None
    content, values = said.get("content"), said.get("token_logprobs")
    if content is not None:
        texts, values = [one.get("token") for one in content], [one.get("logprob") for one in content]
    elif values is not None:
        texts = said.get("tokens") or [""] * len(values)
    else:
        return None
    numbers = [one if type(one) in _NUMBERS else None for one in values]
    named = chain(texts, repeat(""))
    return [Token(text_of(text or ""), number) for text, number in zip(named, numbers, strict=False)]


def _no_ids() -> PolicyError:
    return PolicyError("The endpoint told token ids that are none.")
