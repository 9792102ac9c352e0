"""A conversation without a server: the calls that the gateway would have recorded, had an agent sent these messages.

To study drift: take another tokenizer, or turn stitching off, and see which calls still continue each other.

Worked example: with ``turns = [Turn(messages=[user("2+2?")], said=codec.encode("4<|im_end|>")), …]``,
``build_samples(converse(codec, turns), codec.decode).breaks`` says where, and why, the second call does not continue
the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lightning_lab.gateway.ledger import Ledger, entry
from lightning_lab.gateway.stitch import stitch
from lightning_lab.records import Call, Ids, Message, Sampling
from lightning_lab.tokens import ChatCodec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One request and what was sampled in answer to it."""

    messages: Sequence[Message]
    """As the harness sent them."""
    said: Ids
    """As the model sampled it, end of turn included."""
    minted: Sequence[str] = ()
    """Ids that the reply's tool calls are given, in order: an echo of them finds the call again."""
    tools: Sequence[Mapping[str, Any]] = ()
    signatures: Mapping[int, str] = field(default_factory=dict)
    """Echoed reasoning ids, by the index of the assistant message."""
    parses_arguments: bool = False
    """Whether the protocol carries tool arguments as JSON values (`protocols.wire.Wire`)."""


def converse(codec: ChatCodec, turns: Sequence[Turn], *, stitching: bool = True, rollout_id: str = "r") -> list[Call]:
    """One call per turn, each completed before the next arrived; log-probs are 0. Raises `tokens.TemplateError`."""
    ledger = Ledger()
    return [_call(codec, ledger, turn, ordinal, stitching, rollout_id) for ordinal, turn in enumerate(turns)]


def respelled(codec: ChatCodec, text: str, *, every: int = 6) -> Ids:
    """The text in ids that the tokenizer would not choose, as a sampler's now and then are not.

    Around every ``every``-th token, a long word is cut in two. Decodes to ``text`` again; shape [n].
    """
    said: list[int] = []
    for at, one in enumerate(codec.encode(text).tolist()):
        word = codec.decode(np.array([one], np.int32))
        cut = at % every == every // 2 and len(word) > 3 and word.isascii() and word.strip().isalpha()
        said += [*codec.encode(word[:2]).tolist(), *codec.encode(word[2:]).tolist()] if cut else [one]
    return np.array(said, np.int32)


def _call(codec: ChatCodec, ledger: Ledger, turn: Turn, ordinal: int, stitching: bool, rollout_id: str) -> Call:
    messages = ledger.as_said(turn.messages) if turn.parses_arguments else tuple(turn.messages)
    rendered = codec.render(messages, turn.tools)
    known = ledger.turns(messages, turn.signatures)
    prompt = stitch(rendered, known, codec.decode) if stitching else rendered
    reply = codec.parse(turn.said)
    names = zip(turn.minted, reply.tool_calls, strict=False)
    reply = replace(reply, tool_calls=tuple({**call, "id": name} for name, call in names))
    call_id = f"{rollout_id}-{ordinal}"
    ledger.add(entry(call_id, rendered, prompt, turn.said), messages, reply, turn.minted)
    return Call(
        id=call_id,
        rollout_id=rollout_id,
        attempt=1,
        ordinal=ordinal,
        request_id=call_id,
        protocol="chat",
        model="",
        messages=messages,
        tools=tuple(turn.tools),
        reply=reply,
        prompt_ids=prompt,
        sampled_ids=turn.said,
        logprobs=np.zeros(len(turn.said), np.float32),
        versions=np.zeros(len(turn.said), np.int32),
        finish_reason="stop",
        asked={},
        used=Sampling(),
        arrived_at=float(ordinal),
        held_s=0.0,
        started_at=float(ordinal),
        finished_at=ordinal + 0.5,
        delivered=True,
        minted_ids=tuple(turn.minted),
    )
