"""The events of an endpoint's answer, read into just what a reply needs.

Ids and log-probs are most of an answer: a prompt's ids are read straight into an array, and of a sampled token only
its id and its log-prob; its text is read again when somebody asks for it, which few clients do. Everything else may
have any type until it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import numpy as np

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai.faults import message_of
from lightning_lab.records import Ids

_DATA = b"data:"
_DONE = b"[DONE]"
_BRIEF = 16
"""Bytes that may be no event."""
_NUMERALS = b"0123456789-, \t\r\n"
_LARGEST = np.iinfo(np.int32).max
_NO_IDS: Ids = np.empty(0, np.int32)
_NOTHING = msgspec.Raw(b"")
_UNTOLD = (_NOTHING, msgspec.Raw(b"null"))
SampledIds = list[Annotated[int, msgspec.Meta(ge=-1, le=int(_LARGEST))] | None]


class Token(msgspec.Struct, gc=False):
    """A sampled token, as far as it is told of."""

    logprob: float | None = None


class Logprobs(msgspec.Struct, gc=False):
    """``content`` in Chat Completions, the other in Completions."""

    content: list[Token] | None = None
    token_logprobs: list[float | None] | None = None


class Said(msgspec.Struct, gc=False):
    """A reply, or the next piece of it. Servers know one of the names for reasoning."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class Choice(msgspec.Struct, gc=False):
    """The first choice of an event; of a stream, its next piece."""

    delta: Said | None = None
    message: Said | None = None
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


class _Text(msgspec.Struct, gc=False):
    token: Any = None


class _Texts(msgspec.Struct, gc=False):
    content: list[_Text] | None = None
    tokens: list[Any] | None = None


class _ChoiceTexts(msgspec.Struct, gc=False):
    logprobs: _Texts | None = None


class _EventTexts(msgspec.Struct, gc=False):
    """The same event, as far as it names tokens."""

    choices: list[_ChoiceTexts]


Buffer = bytes | memoryview
"""JSON as it came: of a stream, a part of what arrived with it."""
_EVENT = msgspec.json.Decoder(Event)
_TEXTS = msgspec.json.Decoder(_EventTexts)
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

    def read(self, part: bytes) -> Iterator[tuple[Event, Buffer]]:
        """The events that ``part`` completes, and each as it came."""
        if self._kind != "text/event-stream" or b"\n" not in part:
            self._unfinished.append(part)
            return
        if self._unfinished:
            part = b"".join((*self._unfinished, part))
        view, start = memoryview(part), 0  # an event is most of what came: it is read where it is
        while (end := part.find(b"\n", start)) >= 0:
            if part.startswith(_DATA, start):  # others are comments and names of events
                data = view[start + len(_DATA) : end]
                if len(data) <= _BRIEF and (brief := bytes(data).strip()) in (b"", _DONE):
                    if brief:
                        self.done = True
                        return
                else:
                    yield self._event(data)
            start = end + 1
        self._unfinished = [part[start:]] if start < len(part) else []

    def rest(self) -> Iterator[tuple[Event, Buffer]]:
        """What the end of the answer completes: all of it, where it is no stream."""
        last = b"".join(self._unfinished)
        if self._kind == "text/event-stream":
            last = last.removeprefix(_DATA).strip()
            if not last or last == _DONE:
                return
        elif self._kind != "application/json":
            raise PolicyError(
                f"{self._where} answered {self._kind or 'something of no type'}, which is no model's reply: "
                f"{message_of(last, '')} Is base_url right?"
            )
        yield self._event(last)

    def _event(self, data: Buffer) -> tuple[Event, Buffer]:
        try:
            try:
                return _EVENT.decode(data), data
            except msgspec.ValidationError:
                data = _mended(data)
                return _EVENT.decode(data), data
        except msgspec.ValidationError as error:
            raise PolicyError(f"{self._where} sent JSON that is no model's reply: {error}") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise PolicyError(f"{self._where} sent something that is no JSON: {error}") from None


def _mended(data: Buffer) -> bytes:
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
    inside = bytes(memoryview(told)[1:-1])
    if not inside.translate(None, _NUMERALS):  # several times faster than a list of them
        ids = np.fromstring(inside, np.int64, sep=",") if inside.strip() else _NO_IDS
        if not len(ids) or ((b"-" not in inside or ids.min() >= -1) and ids.max() <= _LARGEST):
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


def logprobs_of(told: Logprobs | None) -> list[float | None] | None:
    """One for each token that is told of; None where nothing was told."""
    if told is None:
        return None
    return told.token_logprobs if told.content is None else [token.logprob for token in told.content]


def texts_of(data: Buffer, count: int) -> list[str]:
    """What an event calls the ``count`` tokens whose log-probs it tells; empty for those without a name."""
    told = _TEXTS.decode(data).choices[0].logprobs or _Texts()
    named = told.tokens if told.content is None else [token.token for token in told.content]
    texts = [text if isinstance(text, str) else "" for text in named or ()]
    return texts[:count] + [""] * (count - len(texts))


def text_of(said: Any) -> str:
    """Raises `PolicyError` for what is no text."""
    if not isinstance(said, str):
        raise PolicyError(f"The endpoint said {type(said).__name__} where a text was expected.")
    return said
