"""Small calls for tests. Ids are written by hand; times are ordinals unless given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_lab.records import Call, Message, Sampling


def make_call(ordinal: int, prompt: Sequence[int], sampled: Sequence[int], **changes: Any) -> Call:
    """Call ``ordinal`` arrives at ``ordinal`` and finishes half a second later; log-probs are -0.1, -0.2, …"""
    logprobs = -0.1 * np.arange(1, len(sampled) + 1)
    fields: dict[str, Any] = {
        "id": f"c{ordinal}",
        "rollout_id": "r",
        "attempt": 1,
        "ordinal": ordinal,
        "request_id": f"q{ordinal}",
        "protocol": "chat",
        "model": "any",
        "messages": (Message(role="user", content="hi"),),
        "tools": (),
        "reply": Message(role="assistant", content=f"reply {ordinal}"),
        "prompt_ids": np.array(prompt, np.int32),
        "sampled_ids": np.array(sampled, np.int32),
        "logprobs": logprobs.astype(np.float32),
        "versions": np.full(len(sampled), 3, np.int32),
        "finish_reason": "stop",
        "asked": {},
        "used": Sampling(),
        "arrived_at": float(ordinal),
        "held_s": 0.0,
        "started_at": float(ordinal),
        "finished_at": ordinal + 0.5,
        "delivered": True,
    }
    return Call(**(fields | changes))


def user(text: str) -> Message:
    return Message(role="user", content=text)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def assistant(text: str = "", **fields: Any) -> Message:
    return Message(role="assistant", content=text, **fields)


def tool_call(arguments: str, name: str = "calc", call_id: str = "t1") -> dict[str, str]:
    return {"id": call_id, "name": name, "arguments": arguments}
