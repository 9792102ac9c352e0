"""The events of an endpoint's answer, read into just what a reply needs.

Ids and log-probs are most of an answer: a prompt's ids are read straight into an array, and of a sampled token only
its id, its text and its log-prob. Everything else may have any type until it is looked at.
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
_NO_IDS: Ids = np.empty(0, np.int32)
_NOTHING = msgspec.Raw(b"")
_UNTOLD = (_NOTHING, msgspec.Raw(b"null"))
SampledIds = list[Annotated[int, msgspec.Meta(ge=-1, le=int(_LARGEST))] | None]


class Token(msgspec.Struct, gc=False):
    """A sampled token, as far as it is told of."""

    token: str | None = None
    logprob: float | None = None


class Logprobs(msgspec.Struct, gc=False):
    """``content`` in Chat Completions, the others in Completions."""

    content: list[Token] | None = None
    tokens: list[str | None] | None = None
    token_logprobs: list[float | None] | None = None


class Choice(msgspec.Struct, gc=False):
    """The first choice of an event; of a stream, its next piece."""

    delta: Any = None
    message: Any = None
    text: Any = None
    finish_reason: Any = None
    stop_reason: Any = None
    prompt_token_ids: msgspec.Raw = _NOTHING
    token_ids: SampledIds | None = None
    logprobs: Logprobs | None = None


class Event(msgspec.Struct, gc=False):
    """One JSON object of an answer."""

    choices: list[Choice] | None = None
    prompt_token_ids: msgspec.Raw = _NOTHING
    usage: Any = None
    error: Any = None


_EVENT = msgspec.json.Decoder(Event)
_IDS = msgspec.json.Decoder(SampledIds)


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
        for line in filter(None, lines):
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
            try:
                return _EVENT.decode(data)
            except msgspec.ValidationError:
                return _EVENT.decode(_mended(data))
        except msgspec.ValidationError as error:
            raise PolicyError(f"{self._where} sent JSON that is no model's reply: {error}") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise PolicyError(f"{self._where} sent something that is no JSON: {error}") from None


def _mended(data: bytes) -> bytes:
    """An event without log-probs of odd types, which some servers tell: they are as good as none."""
    event = msgspec.json.decode(data)
    choices = event.get("choices") if isinstance(event, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            choice["logprobs"] = _mended_logprobs(choice.get("logprobs"))
    return msgspec.json.encode(event)


def _mended_logprobs(told: Any) -> Any:
    if not isinstance(told, dict):
        return None
    content, values = told.get("content"), told.get("token_logprobs")
    if isinstance(content, list):
        return {"content": [_mended_token(one) for one in content]}
    if isinstance(values, list):
        return {"tokens": told.get("tokens"), "token_logprobs": [_number(one) for one in values]}
    return None


def _mended_token(told: Any) -> Any:
    if not isinstance(told, dict):
        return {}
    return {"token": told.get("token"), "logprob": _number(told.get("logprob"))}


def _number(told: Any) -> float | None:
    return told if type(told) in (int, float) else None


def prompt_ids_of(told: msgspec.Raw) -> Ids | None:
    """Shape [n], -1 for null; None where nothing was told. Raises `PolicyError` for what is no id."""
    if told in _UNTOLD:
        return None
    inside = bytes(told)[1:-1]
    if not inside.translate(None, _NUMERALS):  # several times faster than a list of them
        ids = np.fromstring(inside, np.int64, sep=",") if inside.strip() else _NO_IDS
        if not len(ids) or (ids.min() >= -1 and ids.max() <= _LARGEST):
            return ids.astype(np.int32)
    try:
        return id_array(_IDS.decode(told))
    except msgspec.ValidationError:
        raise PolicyError("The endpoint told token ids that are none.") from None


def id_array(ids: list[int | None]) -> Ids:
    """Shape [n], -1 for None."""
    try:
        return np.array(ids, np.int32)
    except TypeError:
        return np.array([-1 if one is None else one for one in ids], np.int32)


def tokens_of(told: Logprobs | None) -> list[Token] | None:
    """Texts and log-probs; None where nothing was told."""
    if told is None:
        return None
    if told.content is not None or told.token_logprobs is None:
        return told.content
    texts = chain(told.tokens or (), repeat(""))
    return [Token(text, number) for text, number in zip(texts, told.token_logprobs, strict=False)]


def text_of(said: Any) -> str:
    """Raises `PolicyError` for what is no text."""
    if not isinstance(said, str):
        raise PolicyError(f"The endpoint said {type(said).__name__} where a text was expected.")
    return said
