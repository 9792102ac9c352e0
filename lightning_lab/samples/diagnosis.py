"""Why a call could not continue an open sample. Attachment uses ids alone; the diagnosis reads the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lightning_lab.records import Break, Call, Ids
from lightning_lab.samples.causes import Evidence, cause_of
from lightning_lab.samples.history import History
from lightning_lab.samples.parents import Forest

Decode = Callable[[Ids], str]
WINDOW = 12
"""Tokens shown on each side of a break."""
HEAD = 64
"""Tokens that tell most different texts apart, so that the rest need not be decoded."""
RECENT = 64
"""Completed calls in which a summary is looked for: it is used soon after it was written."""


def diagnose(forest: Forest, decode: Decode | None) -> list[Break]:
    """One break for every call that should have continued an earlier one but does not start with its ids.

    A root breaks with whatever came before it, unless it repeats an earlier prompt (then it is another sample of that
    prompt). A call that has a parent breaks only with a deeper call whose reply its messages hold: anything else is a
    branch, which the forest represents as such. Calls, messages and ids are each looked at a bounded number of times.
    """
    if _cannot_break(forest):
        return []
    history = History(forest)
    breaks = []
    for index, node in enumerate(forest.nodes):
        history.advance(node.call.arrived_at, index)
        previous = history.expected(index)
        if previous is not None:
            recent = [forest.nodes[i].call for i in history.completed[-RECENT:]]
            breaks.append(_break(forest.nodes[previous].call, node.call, recent, decode))
    return breaks


def _cannot_break(forest: Forest) -> bool:
    """One chain: nothing but its root comes without a parent, and no call has a sibling."""
    parents = [parent for parent in forest.parents if parent is not None]
    return len(set(parents)) == len(parents) >= len(forest.nodes) - 1


def first_difference(ids: Ids, others: Ids) -> int:
    """First position where the two differ; the shorter length when one is a prefix of the other."""
    shared = min(len(ids), len(others))
    different = ids[:shared] != others[:shared]
    return int(different.argmax()) if different.any() else shared


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
        same_text=lambda: _same_text(whole, call.prompt_ids, len(previous.prompt_ids) if in_reply else index, decode),
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
    said = whole[start:]
    if len(said) > HEAD and not _begins_alike(decode(prompt[start : start + HEAD]), decode(said[:HEAD])):
        return False
    # other ids for the same text are seldom many more; what follows in a long prompt need not be decoded
    return decode(prompt[start : start + 4 * len(said) + 64]).startswith(decode(said))


def _begins_alike(text: str, other: str) -> bool:
    """Up to the shorter one's end, where a cut may have left half a character: at most three marks."""
    end = max(0, min(len(text), len(other)) - 3)
    return text[:end] == other[:end]


def _window(ids: Ids, index: int, decode: Decode | None) -> str:
    window = ids[max(0, index - WINDOW) : index + WINDOW]
    return decode(window[window >= 0]) if decode is not None else ""
