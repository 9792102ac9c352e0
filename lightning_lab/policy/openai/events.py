"""The events of an endpoint's answer, read into just what a reply needs.

Ids and log-probs are most of an answer, so they are read without an object for each: ids straight into an array, and of
a token's log-prob only its text and the number. Everything else may have any type until it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai.faults import message_of
from lightning_lab.records import Floats, Ids

_DONE = b"[DONE]"
_NUMERALS = b"0123456789-, \t\r\n"
_LARGEST = np.iinfo(np.int32).max
_UNKNOWN_LOGPROB = -9999.0
"""OpenAI's number for a token whose log-prob it does not know."""
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


class _Token(msgspec.Struct, gc=False):
    token: str | None = None
    logprob: float | None = None


class _Content(msgspec.Struct, gc=False):
    content: list[_Token] | None = None
    token_logprobs: msgspec.Raw = _NOTHING


_EVENT = msgspec.json.Decoder(Event)
_CONTENT = msgspec.json.Decoder(_Content)


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


def ids_of(told: msgspec.Raw) -> Ids | None:
    """Shape [n], -1 for null; None where nothing was told. Raises `PolicyError` for what is no id."""
    if told in _UNTOLD:
        return None
    text = bytes(told)
    inside = text[1:-1]
    if inside.translate(None, _NUMERALS):
        ids = _ids_with_gaps(text)
    elif not inside.strip():
        return _NO_IDS
    else:
        ids = np.fromstring(inside, np.int64, sep=",")
    if ids.min() < -1 or ids.max() > _LARGEST:
        raise _no_ids()
    return ids.astype(np.int32)


def logprobs_of(told: msgspec.Raw) -> tuple[list[str], Floats] | None:
    """Texts and log-probs, shape [n], NaN for what is none; in the shape of Chat Completions or of Completions.

    None where nothing was told.
    """
    if told in _UNTOLD:
        return None
    try:
        said = _CONTENT.decode(told)
    except msgspec.ValidationError:
        return _odd_logprobs(told)
    if said.content is not None:
        texts = [one.token or "" for one in said.content]
        return texts, _numbers([one.logprob for one in said.content])
    return _odd_logprobs(told) if said.token_logprobs not in _UNTOLD else None


def text_of(said: Any) -> str:
    """Raises `PolicyError` for what is no text."""
    if not isinstance(said, str):
        raise PolicyError(f"The endpoint said {type(said).__name__} where a text was expected.")
    return said


def _ids_with_gaps(text: bytes) -> np.ndarray:
    """Where some ids are null."""
    ids = msgspec.json.decode(text)
    if not isinstance(ids, list) or not all(type(one) is int or one is None for one in ids):
        raise _no_ids()
    return np.array([-1 if one is None else one for one in ids], np.object_)


def _odd_logprobs(told: msgspec.Raw) -> tuple[list[str], Floats] | None:
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
    return [text_of(one or "") for one in texts], _numbers(numbers)


def _numbers(told: list[Any]) -> Floats:
    numbers = np.array(told, np.float32)
    numbers[numbers <= _UNKNOWN_LOGPROB] = np.nan
    return numbers


def _no_ids() -> PolicyError:
    return PolicyError("The endpoint told token ids that are none.")
