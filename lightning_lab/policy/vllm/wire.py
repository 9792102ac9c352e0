"""vLLM's JSON and the lab's nouns: pure functions, nothing here asks a server.

No request names a model: a server has one, under whatever name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_lab.policy.base import Chunk, PolicyError
from lightning_lab.records import Floats, Ids, Message, Sampling

TOLD_TOKENS = 8
"""Of a streamed reply, told together after the first: what a server's process does for each event, it does for them all
once."""


def generate_body(
    prompt: Ids, sampling: Sampling, *, limit: int, stop_ids: Iterable[int], salt: str, stream: bool
) -> dict[str, Any]:
    """A request to ``/inference/v1/generate``. ``salt`` keeps what other weights cached apart."""
    parameters: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": limit,
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(stop_ids),
        "logprobs": 0,  # of the sampled token alone
        "detokenize": bool(sampling.stop),  # the lab reads ids
    }
    if sampling.seed is not None:
        parameters["seed"] = sampling.seed
    if stream:
        parameters["stream_interval"] = TOLD_TOKENS
    return {"token_ids": prompt, "sampling_params": parameters, "cache_salt": salt, "stream": stream}


def chunk_of(answer: Mapping[str, Any], *, version: int, greedy: bool) -> Chunk:
    """The whole reply, or an event of one. ``version``: for tokens of which the server does not tell it. Raises
    `PolicyError`.

    At temperature 0 the distribution that was sampled from has one token, whose log-prob is 0.
    """
    try:
        choice = answer["choices"][0]
        ids = np.asarray(choice["token_ids"] or [], np.int32)
        content = (choice.get("logprobs") or {}).get("content") or []
        logprobs = np.asarray([token["logprob"] for token in content], np.float32)
        told = [int(token["token_id"]) for token in content]
        versions = versions_of(choice.get("weight_versions"), len(ids), version)
        reason = choice["finish_reason"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PolicyError(
            f"The vLLM server sent a reply of an unknown form ({type(error).__name__}: {error})."
        ) from None
    if told != ids.tolist():  # positions are not known
        logprobs = np.empty(0, np.float32)
    elif greedy:
        logprobs = np.zeros(len(ids), np.float32)
    return Chunk(ids=ids, logprobs=_finite(logprobs), versions=versions, finish_reason=reason)


def versions_of(spans: Sequence[Mapping[str, Any]] | None, length: int, version: int) -> Ids:
    """``[{"version", "start", "end"}]`` of a whole reply → the version of each token, shape [n]."""
    versions = np.full(length, version, np.int32)
    for span in spans or ():
        if str(span["version"]).isdigit():  # a server whose weights nobody named calls them "default"
            versions[int(span["start"]) : int(span["end"])] = int(span["version"])
    return versions


def chat_body(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A conversation in the shape of Chat Completions, for ``/v1/chat/completions/render``."""
    body: dict[str, Any] = {"messages": [_written(message) for message in messages]}
    if tools:
        body["tools"] = list(tools)
    return body


def derender_body(ids: Ids, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sampled ids for ``/v1/chat/completions/derender``, with the tools that its parser may look at."""
    choice = {"index": 0, "token_ids": ids, "finish_reason": "stop"}
    return {
        "generate_response": {"request_id": "parse", "choices": [choice]},
        "chat_request": chat_body([Message(role="user", content="")], tools),
    }


def message_of(answer: Mapping[str, Any]) -> Message:
    """The assistant message of a derendered reply. Raises `PolicyError`."""
    try:
        said = answer["choices"][0]["message"]
        calls = [call["function"] for call in said.get("tool_calls") or ()]
        return Message(
            role="assistant",
            content=said.get("content") or "",
            reasoning=said.get("reasoning") or said.get("reasoning_content") or "",
            tool_calls=tuple({"name": call["name"], "arguments": call["arguments"]} for call in calls),
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise PolicyError(
            f"The vLLM server parsed a reply into an unknown form ({type(error).__name__}: {error})."
        ) from None


def _written(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        written["reasoning"] = message.reasoning
    if message.tool_calls:
        written["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        written["tool_call_id"] = message.tool_call_id
    elif message.name:
        written["name"] = message.name
    return written


def _finite(logprobs: Floats) -> Floats:
    """-9999 is how vLLM writes a log-prob that is no number."""
    return np.where(logprobs <= -9999.0, np.float32(np.nan), logprobs)
