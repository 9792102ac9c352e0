"""`OpenAIPolicy`: conversations go to a server and come back as replies, with ids where the server tells them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn
from urllib.parse import urlsplit

import orjson

from lightning_lab.policy.base import Chunk, PolicyError, Rendered
from lightning_lab.policy.openai.endpoint import Endpoint, Patience
from lightning_lab.policy.openai.faults import fault, message_of
from lightning_lab.policy.openai.reply import EndpointReply
from lightning_lab.policy.openai.writing import written
from lightning_lab.records import Ids, Message, Sampling

_UNKNOWN_CONTEXT = 2**31 - 1


class OpenAIPolicy:
    """Any server that speaks Chat Completions: it answers, and never learns.

    Every request asks for ids and log-probs (``return_token_ids`` of vLLM, ``logprobs``) and is streamed. A server that
    refuses these fields is asked without them; its calls are recorded, and never train.

    ``base_url`` usually ends in ``/v1``. ``api_key`` is taken from ``OPENAI_API_KEY`` when it is None.
    """

    can_learn = False
    version = 0

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, patience: Patience | None = None
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise PolicyError(
                "base_url must be like 'https://host/v1', without credentials or a query; give a key with api_key=…"
            )
        self.name = f"openai:{model}"
        self._model = model
        key = os.environ.get("OPENAI_API_KEY", "") if api_key is None else api_key
        self._endpoint = Endpoint(base_url, key, patience or Patience())
        self._context = _UNKNOWN_CONTEXT
        self._counts = True
        """Until it is known that the server counts no tokens."""
        self._started = False

    @property
    def context_length(self) -> int:
        """As the server tells it (vLLM does); otherwise the server alone knows when a prompt is too long."""
        return self._context

    def start(self) -> None:
        """Ask whether the server is there. Idempotent. Raises `PolicyError`."""
        if not self._started:
            with ThreadPoolExecutor(1) as thread:  # the caller's may have a running loop
                thread.submit(asyncio.run, self._look()).result()
            self._started = True

    def close(self) -> None:
        self._endpoint.close()

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        steering: Mapping[str, Any],
    ) -> EndpointReply:
        body: dict[str, Any] = {**steering, "messages": written(messages, self._reasoning_field), "logprobs": True}
        if tools:
            body["tools"] = list(tools)
        return self._reply("/chat/completions", body, sampling)

    def complete(self, prompt: str | Ids, sampling: Sampling) -> EndpointReply:
        raw = prompt if isinstance(prompt, str) else prompt.tolist()
        return self._reply("/completions", {"prompt": raw, "logprobs": 1}, sampling)

    async def count(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> int | None:
        """By the ``/tokenize`` of vLLM; other servers have none."""
        if not self._counts:
            return None
        body: dict[str, Any] = {"model": self._model, "messages": written(messages, self._reasoning_field)}
        status, said = await self._endpoint.post_beside(
            "/tokenize", {**body, **({"tools": list(tools)} if tools else {})}
        )
        count = _count(said) if status == 200 else None
        self._counts = status != 404 and (status != 200 or count is not None)
        return count

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        self._refuse("render a conversation")

    def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        self._refuse("read ids")

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        self._refuse("parse ids")

    def decode(self, ids: Ids) -> str:
        """Ids as numbers: the vocabulary is the server's."""
        return "".join(f"⟨{one}⟩" for one in ids)

    def fingerprint(self) -> Mapping[str, str]:
        """What can be known of a model behind a server: its name and where it is."""
        return {"model": self._model, "endpoint": self._endpoint.base_url}

    def _reply(self, path: str, asked: Mapping[str, Any], sampling: Sampling) -> EndpointReply:
        body = {
            "model": self._model,
            **asked,
            **_sampling_fields(sampling),
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return EndpointReply(self._endpoint, path, body, version=self.version)

    @property
    def _reasoning_field(self) -> str:
        """In which the server tells reasoning; empty if it never did."""
        return self._endpoint.reasoning_field

    async def _look(self) -> None:
        status, body = await self._endpoint.get("/models")
        if status in (401, 403):
            raise fault(status, message_of(body, self._endpoint.key), where=f"The endpoint {self._endpoint.base_url}")
        self._context = _context_length(body, self._model) or _UNKNOWN_CONTEXT

    def _refuse(self, what: str) -> NoReturn:
        raise PolicyError(f"{self.name} is a chat-level endpoint: it cannot {what}; its server does that by itself.")


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """The run's parameters; what is not decided is left to the server."""
    fields: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    if sampling.top_k:
        fields["top_k"] = sampling.top_k
    if sampling.max_tokens is not None:
        fields["max_tokens"] = sampling.max_tokens
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    return fields


def _count(body: bytes) -> int | None:
    try:
        count = orjson.loads(body)["count"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return count if type(count) is int else None


def _context_length(body: bytes, model: str) -> int | None:
    """``max_model_len`` of the model in a list of models; None where a server does not tell it."""
    try:
        listed = orjson.loads(body)["data"]
        lengths = [one["max_model_len"] for one in listed if one.get("id") == model]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return None
    return lengths[0] if lengths and isinstance(lengths[0], int) else None
