"""A break from both sides: the open sample and the prompt that left it, as text and as ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_lab.notebook.cuts import Cuts
from lightning_lab.notebook.plain import json_value
from lightning_lab.notebook.token_text import TokenText
from lightning_lab.records import Break, BreakCause, Call, Ids
from lightning_lab.samples import explain

BEFORE, AFTER = 16, 48
"""Tokens shown before and after the first difference."""


def break_sides(cuts: Cuts, index: int, text: TokenText) -> dict[str, Any]:
    """Both sides of ``cuts.breaks[index]``. Raises `IndexError`."""
    found = cuts.breaks[index]
    calls = {call.id: call for call in cuts.calls}
    previous, call = calls.get(found.previous_call_id), calls.get(found.call_id)
    none = np.zeros(0, np.int32)
    sample = none if previous is None else np.concatenate([previous.prompt_ids, previous.sampled_ids])
    prompt = none if call is None else call.prompt_ids
    sides = {"sample": _side(sample, found.index, text), "prompt": _side(prompt, found.index, text)}
    left = len(sample) - found.index
    return {
        "call_id": found.call_id,
        "previous_call_id": found.previous_call_id,
        "cause": str(found.cause),
        "index": found.index,
        "start": max(0, found.index - BEFORE),
        "sentence": json_value(explain(found, {call.id: call.ordinal for call in cuts.calls})),
        "stitching": _stitching(found, call, sides),
        "left": max(0, left),
        **sides,
    }


def _side(ids: Ids, index: int, text: TokenText) -> dict[str, Any]:
    window = ids[max(0, index - BEFORE) : index + AFTER].tolist()
    return {"ids": window, "texts": [json_value(text.text(id)) for id in window], "tokens": len(ids)}


def _stitching(found: Break, call: Call | None, sides: dict[str, Any]) -> str:
    """What the gateway did about it: ids are put back only where the text is unchanged."""
    if found.cause is BreakCause.NEW_THREAD:
        return "There was nothing to stitch: another conversation begins here."
    if call is not None and found.previous_call_id in call.left_replies:
        return "The gateway knew the reply again but left it as rendered, because it reads otherwise now."
    put_back = f" The sampled ids of {call.kept_replies} replies were put back." if call and call.kept_replies else ""
    if found.cause is BreakCause.RETOKENIZED:
        return "The text is unchanged, so its sampled ids could have been put back; they were not in this prompt."
    if "".join(sides["sample"]["texts"]) == "".join(sides["prompt"]["texts"]):
        return "Both sides read the same here; the ids differ." + put_back
    return "The text itself changed, so the prompt shows what the harness sent." + put_back
