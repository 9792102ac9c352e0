"""One reply of an endpoint, gathered from its events.

Ids and log-probs are the endpoint's own or none: nothing is tokenised here. What it does not tell is an id of -1 or a
log-prob of NaN; where it told fewer ids than it says it sampled, nobody knows which are missing, so the missing ones
stand in front, and nothing of the reply trains (contract 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai.endpoint import Endpoint
from lightning_lab.policy.openai.events import Choice, Event, ids_of, logprobs_of, text_of
from lightning_lab.policy.openai.faults import error_words, fault
from lightning_lab.records import Floats, Ids, Message

_Scalar = TypeVar("_Scalar", bound=np.generic)
_NO_IDS: Ids = np.empty(0, np.int32)
_SILENT = Choice()
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

    def _hear(self, event: Event) -> None:
        if event.error:
            code = event.error.get("code") if isinstance(event.error, Mapping) else None
            raise fault(code if isinstance(code, int) else 500, error_words(event.error), where="The endpoint")
        if isinstance(event.usage, Mapping):
            self._usage = event.usage
        choice = event.choices[0] if event.choices else _SILENT
        if self._prompt is None:
            told = ids_of(event.prompt_token_ids)
            self._prompt = told if told is not None else ids_of(choice.prompt_token_ids)
        said = self._say(choice.delta or choice.message or {"content": choice.text})
        self._count(choice, said)
        self._finish_reason = choice.finish_reason or self._finish_reason
        if isinstance(choice.stop_reason, str):
            self._stopped_by = choice.stop_reason

    def _say(self, delta: Mapping[str, Any]) -> bool:
        """Add what was said; whether that was anything."""
        reasoning = next((name for name in _REASONING if delta.get(name)), "")
        if reasoning:
            self._endpoint.reasoning_field = reasoning
            self._reasoning.append(text_of(delta[reasoning]))
        content = text_of(delta.get("content") or "")
        self._content.append(content)
        calls = delta.get("tool_calls") or []
        for at, call in enumerate(calls):
            self._call(int(call.get("index") or at), call.get("function") or {})
        return bool(reasoning or content or calls)

    def _call(self, index: int, function: Mapping[str, Any]) -> None:
        call = self._tool_calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _count(self, choice: Choice, said: bool) -> None:
        told, ids = logprobs_of(choice.logprobs), ids_of(choice.token_ids)
        found = ids if ids is not None else _NO_IDS
        if told is None and not len(found):
            self._untold = self._untold or said
            return
        if told is None:
            logprobs = np.full(len(found), np.nan, np.float32)
        else:
            texts, logprobs = told
            self._texts += texts
        if len(logprobs) != len(found) and self._shifted is None:
            self._shifted = len(self._told_logprobs)
        self._ids.append(found)
        self._logprobs.append(logprobs)
        self._untold = self._untold or (said and not len(found))


def _joined(parts: list[npt.NDArray[_Scalar]], kind: type[_Scalar]) -> npt.NDArray[_Scalar]:
    """All parts as one, which takes their place."""
    if len(parts) != 1:
        parts[:] = [np.concatenate(parts) if parts else np.empty(0, kind)]
    return parts[0]
