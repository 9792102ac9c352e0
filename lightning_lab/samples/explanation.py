"""Breaks for people: one sentence each, and a table of what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_lab.records import Break, BreakCause

_BECAUSE = {
    BreakCause.RETOKENIZED: "the same text came back as other token ids",
    BreakCause.TEMPLATE: "the chat template rendered the same messages differently this time",
    BreakCause.REASONING_DROPPED: "the model's reasoning was left out when its reply was sent back",
    BreakCause.TOOL_ARGS: "the harness wrote the arguments of a tool call anew: the same JSON, other characters",
    BreakCause.EDITED: "the harness changed or removed something that had been said",
    BreakCause.TOOLS_CHANGED: "the harness offered other tools than before, and the template shows tools first",
    BreakCause.SYSTEM_CHANGED: "the system prompt changed",
    BreakCause.COMPACTED: "the harness replaced earlier turns by a summary or a shorter window",
    BreakCause.NEW_THREAD: "the harness began another conversation, as a sub-agent does",
    BreakCause.UNKNOWN: "the prompt differs from it, and the messages do not tell why",
}


def explain(found: Break, ordinals: Mapping[str, int] | None = None) -> str:
    """One sentence: where the call left the open sample, and why. ``ordinals``: numbers to show for call ids."""
    call, previous = ((ordinals or {}).get(name, name) for name in (found.call_id, found.previous_call_id))
    return f"From token {found.index} on, call {call} does not continue call {previous}: {_BECAUSE[found.cause]}."


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakCount:
    """One line of the table of a run's breaks."""

    cause: str
    harness: str
    count: int
    tokens_reread: int
    """Prompt tokens that were part of the open sample or stood in their place, and had to be read again."""
    explanation: str
    """The cause in words."""


def count_breaks(
    breaks: Sequence[Break], harness_of: Mapping[str, str], call_tokens: Mapping[str, tuple[int, int]]
) -> list[BreakCount]:
    """Breaks by cause and harness, dearest first.

    Args:
        harness_of: rollout id → name of its harness; rollouts that are missing count as ``""``.
        call_tokens: call id → (prompt tokens, sampled tokens); calls that are missing count 0 tokens.
    """
    totals: dict[tuple[str, str], list[int]] = {}
    for found in breaks:
        total = totals.setdefault((found.cause.value, harness_of.get(found.rollout_id, "")), [0, 0])
        total[0] += 1
        total[1] += _reread(found, call_tokens)
    rows = [
        BreakCount(
            cause=cause, harness=harness, count=count, tokens_reread=tokens, explanation=_BECAUSE[BreakCause(cause)]
        )
        for (cause, harness), (count, tokens) in totals.items()
    ]
    return sorted(rows, key=lambda row: (-row.tokens_reread, -row.count, row.cause, row.harness))


def _reread(found: Break, call_tokens: Mapping[str, tuple[int, int]]) -> int:
    """A new conversation rereads only what it has in common with the open sample."""
    prompt, _ = call_tokens.get(found.call_id, (0, 0))
    if found.cause is BreakCause.NEW_THREAD:
        return min(prompt, found.index)
    return min(prompt, sum(call_tokens.get(found.previous_call_id, (0, 0))))
