"""One reply of an endpoint, gathered from its events.

Ids and log-probs are the endpoint's own or none: nothing is tokenised here. What it does not tell is an id of -1 or a
log-prob of NaN; where it told fewer ids than it says it sampled, nobody knows which are missing, so the missing ones
stand in front, and nothing of the reply trains (contract 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.openai.endpoint import Endpoint
from lightning_lab.policy.openai.events import Buffer, Choice, Event, Said, logprobs_of, prompt_ids_of, text_of
from lightning_lab.policy.openai.faults import error_words, fault
from lightning_lab.policy.openai.told import ToldTokens
from lightning_lab.records import Floats, Ids, Message

_MOST_TOKENS = 10_000_000
"""More than any context: a larger count is an error of the endpoint's, and would fill the memory with ids of -1."""
_LENGTH = "length"
_BROKEN = ("abort", "error")


@dataclass(frozen=True, slots=True, eq=False)
class _Sampled:
    """What is known of the sampled tokens."""

    ids: Ids
    logprobs: Floats
    lost: int
    """How many were sampled and not told: they stand in front."""


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
        self._told = ToldTokens()
        self._known: _Sampled | None = None
        """What was told so far, until the next event."""
        self._untold = False
        """Something was said without an id."""
        self._usage: Mapping[str, Any] = {}
        self._finish_reason: str | None = None
        self._stopped_by = ""

    async def listen(self) -> None:
        await self._endpoint.listen(self._path, self._body, self._hear)
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
        return self._sampled().ids

    @property
    def logprobs(self) -> Floats:
        return self._sampled().logprobs

    @property
    def versions(self) -> Ids:
        return np.full(len(self.ids), self._version, np.int32)

    @property
    def tokens(self) -> Sequence[tuple[str, float]]:
        texts = self._told.texts
        return list(zip(texts, self._told.logprobs.tolist(), strict=False)) if texts else []

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
        sampled = self._sampled()
        told = {
            "prompt_ids": self._prompt is not None and _whole(self._prompt),
            "sampled_ids": _whole(sampled.ids),
            "logprobs": len(sampled.logprobs) == len(sampled.ids) and not sampled.lost and self._told.known,
        }
        return [name for name, whole in told.items() if not whole]

    def _sampled(self) -> _Sampled:
        if self._known is None:
            self._known = self._sum_up()
        return self._known

    def _sum_up(self) -> _Sampled:
        ids, logprobs, sampled = self._told.ids, self._told.logprobs, self._counted("completion_tokens")
        if sampled is None:
            sampled = max(len(logprobs), len(ids) + self._untold)
        lost = max(0, sampled - len(ids))  # ids known to be missing, at places that are not known
        if self._told.shifted is not None and len(logprobs) == len(ids):
            logprobs = logprobs[: self._told.shifted]  # as many as ids, yet not one for each
        if lost:
            ids = np.concatenate([np.full(lost, -1, np.int32), ids])
            logprobs = np.concatenate([np.full(lost, np.nan, np.float32), logprobs])
        return _Sampled(ids, logprobs, lost)

    def _counted(self, name: str) -> int | None:
        count = self._usage.get(name)
        return count if type(count) is int and 0 <= count <= _MOST_TOKENS else None

    def _hear(self, event: Event, source: Buffer) -> None:
        self._known = None
        if event.error:
            code = event.error.get("code") if isinstance(event.error, Mapping) else None
            raise fault(code if isinstance(code, int) else 500, error_words(event.error), where="The endpoint")
        if isinstance(event.usage, dict):
            self._usage = event.usage
        if self._prompt is None:
            self._prompt = prompt_ids_of(event.prompt_token_ids)
        if event.choices:
            self._hear_choice(event.choices[0], source)

    def _hear_choice(self, choice: Choice, source: Buffer) -> None:
        if self._prompt is None:
            self._prompt = prompt_ids_of(choice.prompt_token_ids)
        said = self._say(choice.delta or choice.message or Said(content=choice.text))
        logprobs, ids = logprobs_of(choice.logprobs), choice.token_ids or []
        self._untold = self._untold or (said and not ids)
        if ids or logprobs is not None:
            self._told.add(ids, logprobs, source)
        self._finish_reason = choice.finish_reason or self._finish_reason
        if isinstance(choice.stop_reason, str):
            self._stopped_by = choice.stop_reason

    def _say(self, said: Said) -> bool:
        """Add what was said; whether that was anything."""
        reasoning = said.reasoning_content or said.reasoning
        if reasoning:
            self._endpoint.reasoning_field = "reasoning_content" if said.reasoning_content else "reasoning"
            self._reasoning.append(text_of(reasoning))
        if said.content:
            self._content.append(text_of(said.content))
        calls = said.tool_calls or ()
        for at, call in enumerate(calls):
            self._call(int(call.get("index") or at), call.get("function") or {})
        return bool(reasoning or said.content or calls)

    def _call(self, index: int, function: Mapping[str, Any]) -> None:
        call = self._tool_calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""


def _whole(ids: Ids) -> bool:
    """Whether no id is missing."""
    return not len(ids) or bool(ids.min() >= 0)
