"""Why a call could not continue an open sample. Attachment uses ids alone; the diagnosis reads the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lightning_lab.records import Break, Call, Ids
from lightning_lab.samples.causes import Evidence, cause_of, common_messages
from lightning_lab.samples.delivery import echoed_ids
from lightning_lab.samples.parents import Forest

Decode = Callable[[Ids], str]
WINDOW = 12
"""Tokens shown on each side of a break."""


def diagnose(forest: Forest, decode: Decode | None) -> list[Break]:
    """One break for every call that should have continued an earlier one but does not start with its ids."""
    breaks = []
    for index, node in enumerate(forest.nodes):
        earlier = [
            i for i, other in enumerate(forest.nodes) if i != index and other.call.finished_at <= node.call.arrived_at
        ]
        previous = _previous(forest, index, earlier)
        if previous is not None:
            calls = [forest.nodes[i].call for i in earlier]
            breaks.append(_break(previous, node.call, calls, decode))
    return breaks


def first_difference(ids: Ids, others: Ids) -> int:
    """First position where the two differ; the shorter length when one is a prefix of the other."""
    shared = min(len(ids), len(others))
    different = ids[:shared] != others[:shared]
    return int(different.argmax()) if different.any() else shared


def _previous(forest: Forest, index: int, earlier: Sequence[int]) -> Call | None:
    """The call that was expected to be continued, or None where nothing broke.

    A root breaks with whatever came before it, unless it repeats an earlier prompt (then it is another sample of that
    prompt). A call that has a parent breaks only with a deeper call whose reply its messages hold: anything else is a
    branch, which the forest represents as such.
    """
    call = forest.nodes[index].call
    if forest.parents[index] is not None:
        inherited = forest.path(index)[:-1]
        deeper = [i for i in earlier if set(inherited) < set(forest.path(i))]
        held = [forest.nodes[i].call for i in deeper if _holds_reply(call, forest.nodes[i].call)]
        return max(held, key=lambda other: (len(other.messages), other.finished_at), default=None)
    calls = [forest.nodes[i].call for i in earlier]
    if any(np.array_equal(call.prompt_ids, other.prompt_ids) for other in calls):
        return None
    echoed = echoed_ids(call)
    return max(calls, key=lambda other: _kinship(call, other, echoed), default=None)


def _kinship(call: Call, other: Call, echoed: frozenset[str]) -> tuple[bool, int, bool, float, int]:
    common = common_messages(other, call)
    return (
        not echoed.isdisjoint(other.minted_ids),
        common,
        other.thread == call.thread,
        other.finished_at,
        other.ordinal,
    )


def _holds_reply(call: Call, previous: Call) -> bool:
    """Whether the call's messages have the shape of the previous call's, followed by an assistant message."""
    said = len(previous.messages)
    roles = [message.role for message in call.messages[: said + 1]]
    return roles == [*(message.role for message in previous.messages), "assistant"]


def _break(previous: Call, call: Call, earlier: Sequence[Call], decode: Decode | None) -> Break:
    whole = np.concatenate([previous.prompt_ids, previous.sampled_ids])
    index = first_difference(whole, call.prompt_ids)
    in_reply = index >= len(previous.prompt_ids)
    evidence = Evidence(
        previous=previous,
        call=call,
        earlier=earlier,
        in_reply=in_reply,
        missing_ids=len(previous.prompt_ids) == 0 or bool((whole < 0).any() or (call.prompt_ids < 0).any()),
        same_text=_same_text(whole, call.prompt_ids, len(previous.prompt_ids) if in_reply else index, decode),
    )
    return Break(
        rollout_id=call.rollout_id,
        call_id=call.id,
        previous_call_id=previous.id,
        index=index,
        cause=cause_of(evidence),
        before=_window(whole, index, decode),
        after=_window(call.prompt_ids, index, decode),
    )


def _same_text(whole: Ids, prompt: Ids, start: int, decode: Decode | None) -> bool:
    if decode is None or (whole < 0).any() or (prompt < 0).any():
        return False
    return decode(prompt[start:]).startswith(decode(whole[start:]))


def _window(ids: Ids, index: int, decode: Decode | None) -> str:
    window = ids[max(0, index - WINDOW) : index + WINDOW]
    return decode(window[window >= 0]) if decode is not None else ""
