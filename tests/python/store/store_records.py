"""Records to store: small builders and a hypothesis strategy for every text and array that an agent may produce."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from lightning_lab.records import (
    Call,
    HarnessInfo,
    Message,
    Rollout,
    RolloutState,
    Run,
    Sample,
    Sampling,
    Segment,
    Task,
)

TASK = Task(id="t-1", prompt="1 + 1", answer="2", source="test", fields={"a": [1, None, {"b": 2.5}]})
HARNESS = HarnessInfo(name="solver", version="abc", kind="function", source="def solver(task): ...")


def run(id_: str = "run", **fields: Any) -> Run:
    return Run(**{"id": id_, "kind": "fit", "state": "running", "settings": {"n": 8}, "created_at": 1.5, **fields})


def rollout(id_: str = "r-1", state: str = "queuing", **fields: Any) -> Rollout:
    known = {"run_id": "run", "group_id": "g-1", "task": TASK, "harness": HARNESS, "mode": "train", "created_at": 2.0}
    return Rollout(**{**known, "id": id_, "state": RolloutState(state), **fields})


def call(id_: str = "c-1", *, prompt: Any = (1, 2, 3), sampled: Any = (4, 5), **fields: Any) -> Call:
    known: dict[str, Any] = {
        "id": id_,
        "rollout_id": "r-1",
        "attempt": 1,
        "ordinal": 0,
        "request_id": f"q-{id_}",
        "protocol": "chat",
        "model": "policy",
        "messages": (Message(role="user", content="1 + 1"),),
        "tools": ({"type": "function", "function": {"name": "calc"}},),
        "reply": Message(role="assistant", content="2"),
        "prompt_ids": np.array(prompt, np.int32),
        "sampled_ids": np.array(sampled, np.int32),
        "logprobs": np.full(len(sampled), -0.5, np.float32),
        "versions": np.full(len(sampled), 3, np.int32),
        "finish_reason": "stop",
        "asked": {"temperature": 0.2},
        "used": Sampling(temperature=1.0, max_tokens=64, stop=("</s>",), seed=1),
        "arrived_at": 10.0,
        "held_s": 0.25,
        "started_at": 10.5,
        "finished_at": 11.0,
        "delivered": False,
    }
    return Call(**{**known, **fields})


def sample(rollout_id: str = "r-1", n: int = 6, call_id: str = "c-1") -> Sample:
    mask = np.arange(n) >= n // 2
    return Sample(
        rollout_id=rollout_id,
        ids=np.arange(n, dtype=np.int32),
        mask=mask,
        logprobs=np.where(mask, -0.25, 0).astype(np.float32),
        versions=np.where(mask, 3, -1).astype(np.int32),
        segments=(Segment(call_id=call_id, start=n // 2, stop=n),),
        masked={"unaligned": 2},
    )


def turns(count: int, rollout_id: str = "r-1", attempt: int = 1, new: int = 50, seed: int = 0) -> list[Call]:
    """A growing conversation: each prompt is all before it, plus ``new`` ids; ``new`` ids are sampled."""
    random = np.random.default_rng(seed)
    prompt, messages, calls = np.zeros(0, np.int32), [], []
    for ordinal in range(count):
        prompt = np.concatenate([prompt, random.integers(0, 150_000, new, np.int32)])
        messages = [*messages, Message(role="user", content=" ".join(map(str, prompt[-new:])))]
        sampled = random.integers(0, 150_000, new, np.int32)
        reply = Message(role="assistant", content=" ".join(map(str, sampled)))
        identity = {"rollout_id": rollout_id, "attempt": attempt, "ordinal": ordinal}
        logprobs = -random.random(new, np.float32)
        calls.append(
            call(
                f"c-{rollout_id}-{attempt}-{ordinal}",
                prompt=prompt,
                sampled=sampled,
                logprobs=logprobs,
                messages=tuple(messages),
                reply=reply,
                **identity,
            )
        )
        prompt, messages = np.concatenate([prompt, sampled]), [*messages, reply]
    return calls


TEXTS = st.text(st.characters(), max_size=20)
"""Any code points: NUL, lone surrogates, controls."""
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, JSON_VALUES, max_size=3)
TOOL_CALLS = st.fixed_dictionaries({"id": TEXTS, "name": TEXTS, "arguments": TEXTS})
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=TEXTS,
    reasoning=TEXTS,
    tool_calls=st.lists(TOOL_CALLS, max_size=2).map(tuple),
    tool_call_id=TEXTS,
    name=TEXTS,
)
IDS = st.lists(st.integers(0, 3), max_size=12).map(lambda ids: np.array(ids, np.int32))
"""From a tiny vocabulary, so that prefixes are shared and branch."""


@st.composite
def conversations(draw: st.DrawFn) -> list[Call]:
    """Calls of one rollout that share, extend, branch and rewrite each other's prompts."""
    calls: list[Call] = []
    for ordinal in range(draw(st.integers(1, 7))):
        prompt, messages = draw(IDS), tuple(draw(st.lists(MESSAGES, max_size=3)))
        if calls and draw(st.booleans()):
            base = draw(st.sampled_from(calls))
            whole = np.concatenate([base.prompt_ids, base.sampled_ids])
            prompt = np.concatenate([whole[: draw(st.integers(0, len(whole)))], prompt])
            messages = base.messages[: draw(st.integers(0, len(base.messages)))] + messages
        sampled = draw(IDS)
        logprobs = draw(st.lists(st.floats(width=32), min_size=len(sampled), max_size=len(sampled)))
        versions = draw(st.lists(st.integers(0, 2), min_size=len(sampled), max_size=len(sampled)))
        calls.append(
            call(
                f"c-{ordinal}",
                prompt=prompt,
                sampled=sampled,
                ordinal=ordinal,
                attempt=draw(st.integers(1, 2)),
                messages=messages,
                tools=tuple(draw(st.lists(OBJECTS, max_size=2))),
                reply=draw(MESSAGES),
                logprobs=np.array(logprobs, np.float32),
                versions=np.array(versions, np.int32),
                asked=draw(OBJECTS),
                request_extra=draw(OBJECTS),
                minted_ids=tuple(draw(st.lists(TEXTS, max_size=2))),
                kept_replies=draw(st.integers(0, 3)),
                left_replies=tuple(draw(st.lists(TEXTS, max_size=2))),
                error=draw(TEXTS),
            )
        )
    return calls


def same(left: Any, right: Any) -> bool:
    """Equality of two records, arrays compared bit by bit with their dtypes."""
    names = [name for name in type(left).__slots__ if isinstance(getattr(left, name), np.ndarray)]
    for name in names:
        a, b = getattr(left, name), getattr(right, name)
        if a.dtype != b.dtype or a.tobytes() != b.tobytes():
            return False
    others = [name for name in type(left).__slots__ if name not in names]
    return type(left) is type(right) and all(getattr(left, name) == getattr(right, name) for name in others)
