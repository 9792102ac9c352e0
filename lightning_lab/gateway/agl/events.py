"""Calls as ``model_request`` events: whole, or as the triplets that a trainer there reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_lab.gateway.agl.wire import WireEvent
from lightning_lab.records import Call, Message

MODEL_REQUEST = "model_request"
REWARD = "reward"


def call_event(call: Call, attempt_id: str, *, model: str, endpoint: str) -> WireEvent:
    """One call. A call whose reply did not reach the agent is an error, with nothing to train on."""
    server = {"model": model, "endpoint": endpoint, "version": _version(call)}
    delivered = call.delivered
    data = {
        "model": model,
        "model_version": server["version"],
        "request": _request(call),
        "response": _response(call, model) if delivered else {"error": {"message": call.error or "not delivered"}},
        "server": server,
        "latency_ms": (call.finished_at - call.arrived_at) * 1000,
        "http_status": 200 if delivered else 500,
        "status": "ok" if delivered else "error",
        "retry_count": 0,
        "routed_experts": None,
        "usage": _usage(call),
        "finish_reason": call.finish_reason,
    }
    return WireEvent(
        event_type=MODEL_REQUEST,
        rollout_id=call.rollout_id,
        attempt_id=attempt_id,
        timestamp=call.finished_at,
        data=data,
    )


def triplet(event: WireEvent) -> WireEvent:
    """The event with only what training needs; events of an agent's own stay as they are."""
    if event.event_type == MODEL_REQUEST:
        return event.model_copy(update={"data": _model_triplet(event.data)})
    if event.event_type == REWARD:
        kept = {name: event.data[name] for name in ("source", "reason") if name in event.data}
        return event.model_copy(update={"data": {"value": event.data.get("value"), **kept}})
    return event


def reward_value(data: Mapping[str, Any]) -> float | None:
    """The number of a reward event; None where it is not finite or none."""
    value = data.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return None
    return float(value)


def _model_triplet(data: Mapping[str, Any]) -> dict[str, Any]:
    response, server = data["response"], data["server"]
    [choice] = response.get("choices") or [{}]
    logprobs = (choice.get("logprobs") or {}).get("content")
    return {
        "prompt_token_ids": response.get("prompt_token_ids", []),
        "response_token_ids": choice.get("token_ids", []),
        "response_log_probs": logprobs and [one["logprob"] for one in logprobs],
        "server": {"model": server["model"], "version": server["version"]},
        "http_status": data["http_status"],
        "status": data["status"],
        **({"error": response["error"]} if "error" in response else {}),
    }


def _request(call: Call) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": call.model, "messages": [_message(message) for message in call.messages]}
    if call.tools:
        asked["tools"] = list(call.tools)
    return {**asked, **call.asked, **call.request_extra}


def _response(call: Call, model: str) -> dict[str, Any]:
    """The answer in the shape of Chat Completions, with what vLLM adds when it is asked for ids."""
    exact = not (call.prompt_ids < 0).any() and not (call.sampled_ids < 0).any()
    return {
        "id": call.request_id,
        "object": "chat.completion",
        "created": int(call.arrived_at),
        "model": model,
        "prompt_token_ids": call.prompt_ids.tolist() if exact else [],
        "choices": [
            {
                "index": 0,
                "message": _message(call.reply),
                "finish_reason": call.finish_reason,
                "token_ids": call.sampled_ids.tolist() if exact else [],
                "logprobs": _logprobs(call),
            }
        ],
        "usage": _usage(call),
    }


def _logprobs(call: Call) -> dict[str, Any] | None:
    """None unless every token has a log-prob: who reads these cannot mask single tokens."""
    if len(call.logprobs) != len(call.sampled_ids) or not np.isfinite(call.logprobs).all():
        return None
    pairs = zip(call.sampled_ids.tolist(), call.logprobs.tolist(), strict=True)
    return {"content": [{"token": f"token_id:{one}", "logprob": logprob} for one, logprob in pairs]}


def _message(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        written["reasoning_content"] = message.reasoning
    if message.tool_calls:
        written["tool_calls"] = [
            {"id": said["id"], "type": "function", "function": {"name": said["name"], "arguments": said["arguments"]}}
            for said in message.tool_calls
        ]
    if message.tool_call_id:
        written["tool_call_id"] = message.tool_call_id
    return written


def _usage(call: Call) -> dict[str, int]:
    prompt, sampled = len(call.prompt_ids), len(call.sampled_ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _version(call: Call) -> int | None:
    return int(call.versions[-1]) if len(call.versions) else None
