"""One reply of an endpoint, gathered from its events.

Ids and log-probs are the endpoint's own or none: nothing is tokenised here. What it does not tell is an id of -1 or a
log-prob of NaN; where it told fewer ids than it says it sampled, nobody knows which are missing, so the missing ones
stand in front, and nothing of the reply trains (contract 2).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai.endpoint import Endpoint
from lightning_lab.policy.openai.faults import error_words, fault
from lightning_lab.records import Floats, Ids, Message

_UNKNOWN_LOGPROB = -9999.0
"""OpenAI's number for a token whose log-prob it does not know."""
_Scalar = TypeVar("_Scalar", bound=np.generic)
_NO_IDS: Ids = np.empty(0, np.int32)
_NUMBERS = {float, int, type(None)}
_TOKEN, _LOGPROB = itemgetter("token"), itemgetter("logprob")
_MOST_TOKENS = 10_000_000
"""More than any context: a larger count is an error of the endpoint's, and would fill the memory with ids of -1."""
_LENGTH = "length"
_BROKEN = ("abort", "error")
_REASONING = ("reasoning_content", "reasoning")
"""Names of the field that carries reasoning; servers know one of them."""


class EndpointReply:
    """A `ChatReply`; ``path`` and ``body`` are the request."""

    def __init__(self, endpoint: Endpoint, path: str, body: Mapping[str, Any], *, version: int) -> None:
        self._endpoint = endpoint
        self._path = path
        self._body = body
        self._version = version
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: dict[int, dict[str, str]] = {}
        self._prompt: Ids | None = None
        self._ids: list[Ids] = []
        """In parts, one for each event."""
        self._logprobs: list[Floats] = []
        self._texts: list[str] = []
        self._shifted: int | None = None
        """Where log-probs stopped to belong to ids for sure."""
        self._untold = False
        """Something was said without an id."""
        self._usage: Mapping[str, Any] = {}
        self._finish_reason: str | None = None
        self._stopped_by = ""

    async def listen(self) -> None:
        async with aclosing(self._endpoint.events(self._path, self._body)) as events:
            async for event in events:
                self._hear(event)
        where = f"The endpoint {self._endpoint.base_url}{self._path}"
        if self._finish_reason is None:
            raise PolicyError(f"{where} closed its answer in the middle.")
        if self._finish_reason in _BROKEN:
            raise PolicyError(f"{where} broke the generation off (finish reason {self._finish_reason!r}).")

    @property
    def message(self) -> Message:
        return Message(
            role="assistant",
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(self._tool_calls[at] for at in sorted(self._tool_calls)),
        )

    @property
    def prompt_ids(self) -> Ids:
        if self._prompt is not None:
            return self._prompt
        return np.full(self._counted("prompt_tokens") or 0, -1, np.int32)

    @property
    def ids(self) -> Ids:
        told, lost = self._told_ids, self._lost
        return np.concatenate([np.full(lost, -1, np.int32), told]) if lost else told

    @property
    def logprobs(self) -> Floats:
        told, lost = self._told_logprobs, self._lost
        if self._shifted is not None and len(told) == len(self._told_ids):
            told = told[: self._shifted]  # as many as ids, yet not one for each
        return np.concatenate([np.full(lost, np.nan, np.float32), told]) if lost else told

    @property
    def versions(self) -> Ids:
        return np.full(self._lost + len(self._told_ids), self._version, np.int32)

    @property
    def tokens(self) -> Sequence[tuple[str, float]]:
        return list(zip(self._texts, self._told_logprobs.tolist(), strict=False)) if self._texts else []

    @property
    def finish_reason(self) -> str | None:
        if self._finish_reason is None or self._finish_reason in _BROKEN:
            return None
        return "length" if self._finish_reason == _LENGTH else "stop"

    @property
    def stopped_by(self) -> str:
        return self._stopped_by

    @property
    def missing(self) -> Sequence[str]:
        told = {
            "prompt_ids": self._prompt is not None and bool((self._prompt >= 0).all()),
            "sampled_ids": not self._lost and bool((self._told_ids >= 0).all()),
            "logprobs": len(self.logprobs) == len(self.ids) and not np.isnan(self.logprobs).any(),
        }
        return [name for name, whole in told.items() if not whole]

    @property
    def _told_ids(self) -> Ids:
        return _joined(self._ids, np.int32)

    @property
    def _told_logprobs(self) -> Floats:
        return _joined(self._logprobs, np.float32)

    @property
    def _lost(self) -> int:
        """How many ids are known to be missing, at places that are not known."""
        told, sampled = len(self._told_ids), self._counted("completion_tokens")
        if sampled is None:
            sampled = max(len(self._told_logprobs), told + self._untold)
        return max(0, sampled - told)

    def _counted(self, name: str) -> int | None:
        count = self._usage.get(name)
        return count if type(count) is int and 0 <= count <= _MOST_TOKENS else None

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event.get("error"):
            code = event["error"].get("code") if isinstance(event["error"], Mapping) else None
            raise fault(code if isinstance(code, int) else 500, error_words(event["error"]), where="The endpoint")
        usage = event.get("usage")
        self._usage = usage if isinstance(usage, Mapping) else self._usage
        choices = event.get("choices") or [{}]
        choice = choices[0]
        prompt = event.get("prompt_token_ids") or choice.get("prompt_token_ids")
        if prompt is not None and self._prompt is None:
            self._prompt = _ids(prompt)
        said = self._say(choice.get("delta") or choice.get("message") or {"content": choice.get("text")})
        self._count(choice, said)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        stopped_by = choice.get("stop_reason")
        self._stopped_by = stopped_by if isinstance(stopped_by, str) else self._stopped_by

    def _say(self, delta: Mapping[str, Any]) -> bool:
        """Add what was said; whether that was anything."""
        reasoning = next((name for name in _REASONING if delta.get(name)), "")
        if reasoning:
            self._endpoint.reasoning_field = reasoning
            self._reasoning.append(_text(delta[reasoning]))
        content = _text(delta.get("content") or "")
        self._content.append(content)
        calls = delta.get("tool_calls") or []
        for at, call in enumerate(calls):
            self._call(int(call.get("index") or at), call.get("function") or {})
        return bool(reasoning or content or calls)

    def _call(self, index: int, function: Mapping[str, Any]) -> None:
        call = self._tool_calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _count(self, choice: Mapping[str, Any], said: bool) -> None:
        ids, told = _ids(choice.get("token_ids") or []), _told(choice.get("logprobs") or {})
        if told is None and not len(ids):
            self._untold = self._untold or said
            return
        if told is None:
            logprobs = np.full(len(ids), np.nan, np.float32)
        else:
            texts, numbers = told
            logprobs = _numbers(numbers)
            self._texts += texts
        if len(logprobs) != len(ids) and self._shifted is None:
            self._shifted = len(self._told_logprobs)
        self._ids.append(ids)
        self._logprobs.append(logprobs)
        self._untold = self._untold or (said and not len(ids))


def _told(logprobs: Mapping[str, Any]) -> tuple[list[str], list[Any]] | None:
    """Texts and log-probs in the shape of Chat Completions or of Completions; None where there are none."""
    content = logprobs.get("content")
    if content is not None:
        try:
            return _texts(list(map(_TOKEN, content))), list(map(_LOGPROB, content))
        except KeyError:  # not every server tells both of every token
            return _texts([one.get("token") for one in content]), [one.get("logprob") for one in content]
    values = logprobs.get("token_logprobs")
    return None if values is None else (_texts(logprobs.get("tokens") or [""] * len(values)), list(values))


def _texts(said: list[Any]) -> list[str]:
    return said if set(map(type, said)) <= {str} else [_text(one or "") for one in said]


def _numbers(told: list[Any]) -> Floats:
    """Log-probs, shape [n]; NaN for what is none."""
    if not set(map(type, told)) <= _NUMBERS:
        told = [one if type(one) in _NUMBERS else None for one in told]
    numbers = np.array(told, np.float32)
    numbers[numbers <= _UNKNOWN_LOGPROB] = np.nan
    return numbers


def _ids(told: Sequence[Any]) -> Ids:
    """Shape [n]; an id that is null is missing. Raises `PolicyError` for what is no id."""
    if not told:
        return _NO_IDS
    try:
        ids = np.frombuffer(array("i", told), np.int32)  # refuses what is no int of 32 bits, in one pass
    except (OverflowError, TypeError):
        if None not in told:
            raise PolicyError("The endpoint told token ids that are none.") from None
        return _ids([-1 if one is None else one for one in told])
    if (ids < -1).any():
        raise PolicyError("The endpoint told token ids that are none.")
    return ids


def _joined(parts: list[npt.NDArray[_Scalar]], kind: type[_Scalar]) -> npt.NDArray[_Scalar]:
    """All parts as one, which takes their place."""
    if len(parts) != 1:
        parts[:] = [np.concatenate(parts) if parts else np.empty(0, kind)]
    return parts[0]


def _text(said: Any) -> str:
    if not isinstance(said, str):
        raise PolicyError(f"The endpoint said {type(said).__name__} where a text was expected.")
    return said
