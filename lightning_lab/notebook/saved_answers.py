"""What a saved rollout view can answer without a kernel: the replies to requests, kept as they would be sent.

The front end asks a saved output the same questions as a lab. The most telling answers are kept first, until the room
is used up: the group's weights, the tokens of the sample that trains most, both sides of breaks, further samples.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

from lightning_lab.notebook.cuts import Cuts
from lightning_lab.notebook.plain import json_bytes
from lightning_lab.notebook.requests import Reply
from lightning_lab.notebook.sides import break_sides
from lightning_lab.notebook.strips import ENVELOPE_BYTES, sample_columns
from lightning_lab.notebook.token_text import TokenText
from lightning_lab.notebook.weighing import weigh_group
from lightning_lab.store import Store

_LEAST = 4_000
"""Bytes below which a part of a sample is not worth keeping."""

SavedAnswers = Callable[[int], list[dict[str, Any]]]
"""Bytes of JSON that there is room for → answers."""


def saved_answers(store: Store, cuts: Cuts, text: TokenText) -> SavedAnswers:
    """``cuts``: the rollout as it is shown, without secrets."""

    def within(budget: int) -> list[dict[str, Any]]:
        kept = []
        for make in _asked(store, cuts, text):
            answer = make(budget)
            size = 0 if answer is None else len(json_bytes(answer)) + 1
            if answer is not None and size <= budget:
                kept.append(answer)
                budget -= size
        return kept

    return within


def _asked(store: Store, cuts: Cuts, text: TokenText) -> Iterator[Callable[[int], dict[str, Any] | None]]:
    id = cuts.rollout.id
    yield lambda _: _kept("weights", {"id": id}, Reply(weigh_group(store, id)))
    stats = store.token_stats(id) if cuts.trained else []

    def tokens(index: int) -> Callable[[int], dict[str, Any] | None]:
        def make(budget: int) -> dict[str, Any] | None:
            share = budget * 3 // 4  # a sample of any length leaves room for what comes after it
            room = share * 3 // 4 - 1_000  # base64 makes four bytes of three
            if room < _LEAST:
                return None
            reply = sample_columns(cuts.samples, stats, text, index=index, max_bytes=room + ENVELOPE_BYTES)
            return _kept("tokens", {"id": id, "sample": index, "from": 0}, reply)

        return make

    def sides(place: int) -> Callable[[int], dict[str, Any] | None]:
        return lambda _: _kept("sides", {"id": id, "break": place}, Reply(break_sides(cuts, place, text)))

    fullest = sorted(range(len(cuts.samples)), key=lambda i: -int(cuts.samples[i].mask.sum()))
    yield from map(tokens, fullest[:1])
    yield from map(sides, range(len(cuts.breaks)))
    yield from map(tokens, fullest[1:])


def _kept(method: str, params: dict[str, Any], reply: Reply) -> dict[str, Any]:
    buffers = [base64.b64encode(buffer).decode("ascii") for buffer in reply.buffers]
    return {"method": method, "params": params, "result": reply.data, "buffers": buffers}
