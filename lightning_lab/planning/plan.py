"""Lengths → micro-batches with balanced compute. Pure and deterministic.

Invariants: every row is in exactly one micro-batch; no micro-batch holds more tokens than the budget; every rank gets
the same number of micro-batches, the missing ones being empty (a rank that gets an empty one adds a zero loss).

Ranks work in lockstep: the k-th micro-batches of all ranks run side by side and the slowest decides. So micro-batches
of similar cost are put side by side. `Plan.imbalance` is Σ_k max_r c(r, k) · ranks / Σ c, 1 where no rank waits.

Worked example: lengths ``[5, 3, 4]``, budget 8, one rank: ``[[2, 1], [0]]``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Cost = Callable[[Floats], Floats]
"""Lengths [n] → what each row costs [n]; never falling with the length."""

REFINEMENTS = 64
"""Exchanges between the dearest and the cheapest micro-batch of one slot, at most."""


class PlanError(ValueError):
    """No plan satisfies the budget; the message says which row is too long."""


def transformer_cost(lengths: Floats) -> Floats:
    """24576·L + L²: linear layers and attention of a model with hidden size 4096 (6·h·L + L², up to a factor)."""
    return 24576.0 * lengths + lengths**2


@dataclass(frozen=True, slots=True)
class Plan:
    """Row indices by micro-batch, and micro-batches by rank."""

    micro_batches: list[list[int]]
    """Dearest first; empty ones are zero-loss padding for ranks that have less to do."""
    ranks: list[list[int]]
    """``ranks[r]`` lists the indices of rank r's micro-batches; all lists are equally long."""
    imbalance: float = 1.0
    """Σ_k max_r c(r, k) · ranks / Σ c: what the ranks' waiting for each other costs, 1 for nothing."""

    def of_rank(self, rank: int) -> list[list[int]]:
        """The rank's micro-batches in order."""
        return [self.micro_batches[index] for index in self.ranks[rank]]


def plan(lengths: Sequence[int], budget: int, ranks: int = 1, *, cost: Cost = transformer_cost) -> Plan:
    """Split rows over as few micro-batches per rank as the search finds, each of at most ``budget`` tokens.

    Dearest row first, each to the cheapest micro-batch that has room; then micro-batches that run side by side
    exchange rows. Raises `PlanError` when a row is longer than the budget (cut it first: ``samples.cut``), or when
    budget or ranks are below 1.
    """
    if budget < 1 or ranks < 1:
        raise PlanError(f"budget is {budget} and ranks is {ranks}; both must be at least 1.")
    tokens = np.asarray(lengths, np.int64).reshape(-1)
    if not len(tokens):
        return Plan([], [[] for _ in range(ranks)])
    longest = int(tokens.argmax())
    if tokens[longest] > budget:
        raise PlanError(
            f"Row {longest} has {tokens[longest]} tokens, more than the budget of {budget}. "
            "Raise token_budget, or cut the sample with samples.cut()."
        )
    costs = cost(tokens.astype(np.float64))
    bins = _fill(tokens.tolist(), costs.tolist(), budget, ranks)
    totals = [float(costs[rows].sum()) if rows else 0.0 for rows in bins]
    order = sorted(range(len(bins)), key=lambda i: (-totals[i], i))
    slots = [[bins[i] for i in order[start : start + ranks]] for start in range(0, len(bins), ranks)]
    waiting = 0.0
    for slot in slots:
        waiting += _refine(slot, tokens, costs, budget)
    total = float(costs.sum())
    dealt = [list(range(rank, len(bins), ranks)) for rank in range(ranks)]
    return Plan([rows for slot in slots for rows in slot], dealt, waiting * ranks / total if total > 0 else 1.0)


def split_steps(
    rollout_of_row: Sequence[int], lengths: Sequence[int], steps: int, *, cost: Cost = transformer_cost
) -> list[list[int]]:
    """Rows by optimiser step, balanced by cost; a rollout's rows all belong to one step.

    A rollout that was cut into several samples must not be seen half before and half after an update. Steps may be
    empty when there are fewer rollouts than steps. Raises `PlanError` when ``steps`` is below 1 or the shapes differ.
    """
    if steps < 1 or len(rollout_of_row) != len(lengths):
        raise PlanError(
            f"steps is {steps} (at least 1) for {len(lengths)} rows of {len(rollout_of_row)} rollout labels (as many)."
        )
    labels = np.unique(np.asarray(rollout_of_row), return_inverse=True)[1].reshape(-1)
    costs = np.bincount(labels, cost(np.asarray(lengths, np.float64))) if len(labels) else np.zeros(0)
    loads = [0.0] * steps
    step_of = np.zeros(len(costs), np.int64)
    for rollout in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        step = min(range(steps), key=lambda s: (loads[s], s))
        step_of[rollout] = step
        loads[step] += float(costs[rollout])
    return [np.flatnonzero(step_of[labels] == step).tolist() for step in range(steps)]


def _fill(lengths: list[int], costs: list[float], budget: int, ranks: int) -> list[list[int]]:
    """The smallest number of micro-batches, a multiple of ``ranks``, that the search can fill.

    It ends: with twice the bins that the tokens need, one is always at most half full.
    """
    order = sorted(range(len(lengths)), key=lambda row: (-costs[row], row))
    count = -(-max(1, -(-sum(lengths) // budget)) // ranks) * ranks
    while (bins := _try_fill(order, lengths, costs, budget, count)) is None:
        count += ranks
    return bins


def _try_fill(
    order: list[int], lengths: list[int], costs: list[float], budget: int, count: int
) -> list[list[int]] | None:
    bins: list[list[int]] = [[] for _ in range(count)]
    room = [budget] * count
    cheapest = [(0.0, index) for index in range(count)]
    for row in order:
        length, tight = lengths[row], []
        while cheapest and room[cheapest[0][1]] < length:
            tight.append(heapq.heappop(cheapest))
        if not cheapest:
            return None
        load, index = cheapest[0]
        bins[index].append(row)
        room[index] -= length
        heapq.heapreplace(cheapest, (load + costs[row], index))
        for entry in tight:
            heapq.heappush(cheapest, entry)
    return bins


def _refine(slot: list[list[int]], tokens: npt.NDArray[np.int64], costs: Floats, budget: int) -> float:
    """Exchange rows between the dearest and the cheapest micro-batch while that helps → the dearest one's cost."""
    loads = [float(costs[rows].sum()) if rows else 0.0 for rows in slot]
    for _ in range(REFINEMENTS):
        high, low = max(range(len(slot)), key=loads.__getitem__), min(range(len(slot)), key=loads.__getitem__)
        gap = loads[high] - loads[low]
        if gap <= 0.002 * loads[high]:
            break
        best = _best_exchange(slot[high], slot[low], tokens, costs, budget, gap)
        if best is None:
            break
        given, taken = best
        for source, target, row in ((high, low, given), (low, high, taken)):
            if row is not None:
                slot[source].remove(row)
                slot[target].append(row)
                loads[source] -= float(costs[row])
                loads[target] += float(costs[row])
    return max(loads)


def _best_exchange(
    high: list[int], low: list[int], tokens: npt.NDArray[np.int64], costs: Floats, budget: int, gap: float
) -> tuple[int, int | None] | None:
    """Which row to give, and which to take back (or none), so that the two come closest to each other."""
    taken_cost, taken_tokens = np.append(costs[low], 0.0), np.append(tokens[low], 0)
    moved = costs[high][:, None] - taken_cost[None]
    change = tokens[high][:, None] - taken_tokens[None]
    fits = (tokens[low].sum() + change <= budget) & (tokens[high].sum() - change <= budget)
    left = np.where(fits & (moved > 0), np.abs(gap - 2.0 * moved), np.inf)
    given, taken = np.unravel_index(int(left.argmin()), left.shape)
    if not left[given, taken] < gap * (1 - 1e-9):
        return None
    return high[given], (low[taken] if taken < len(low) else None)
