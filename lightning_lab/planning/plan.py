"""Lengths → micro-batches. Pure and deterministic.

Invariants: every row is in exactly one micro-batch; no micro-batch holds more tokens than the budget; every rank gets
the same number of micro-batches, the missing ones being empty (a rank that gets an empty one adds a zero loss).

Worked example: lengths ``[5, 3, 4]``, budget 8, one rank: ``[[0], [2, 1]]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class PlanError(ValueError):
    """No plan satisfies the budget; the message says which row is too long."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Row indices by micro-batch, and micro-batches by rank."""

    micro_batches: list[list[int]]
    """Longest rows first; empty ones are zero-loss padding for ranks that have less to do."""
    ranks: list[list[int]]
    """``ranks[r]`` lists the indices of rank r's micro-batches; all lists are equally long."""

    def of_rank(self, rank: int) -> list[list[int]]:
        """The rank's micro-batches in order."""
        return [self.micro_batches[index] for index in self.ranks[rank]]


def plan(lengths: Sequence[int], budget: int, ranks: int = 1) -> Plan:
    """Split rows over micro-batches of at most ``budget`` tokens.

    Rows are taken longest first and put together while they fit, so that the rows of a micro-batch have similar
    lengths. Raises `PlanError` when a row is longer than the budget (cut it first: ``samples.cut``), or when budget or
    ranks are below 1.
    """
    if budget < 1 or ranks < 1:
        raise PlanError(f"budget is {budget} and ranks is {ranks}; both must be at least 1.")
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    if order and lengths[order[0]] > budget:
        raise PlanError(
            f"Row {order[0]} has {lengths[order[0]]} tokens, more than the budget of {budget}. "
            "Raise token_budget, or cut the sample with samples.cut()."
        )
    micro_batches = _fill(order, lengths, budget)
    micro_batches += [[] for _ in range(-len(micro_batches) % ranks)]
    return Plan(micro_batches, _deal(micro_batches, lengths, ranks))


def _fill(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    micro_batches: list[list[int]] = []
    room = -1
    for row in order:
        if lengths[row] > room:
            micro_batches.append([])
            room = budget
        micro_batches[-1].append(row)
        room -= lengths[row]
    return micro_batches


def _deal(micro_batches: Sequence[Sequence[int]], lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Heaviest micro-batch first, each to the lightest rank that still has a free place."""
    places = len(micro_batches) // ranks
    tokens = [sum(lengths[row] for row in rows) for rows in micro_batches]
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in sorted(range(len(micro_batches)), key=lambda i: (-tokens[i], i)):
        rank = min((r for r in range(ranks) if len(dealt[r]) < places), key=lambda r: (loads[r], r))
        dealt[rank].append(index)
        loads[rank] += tokens[index]
    return dealt
