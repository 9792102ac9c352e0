"""Contract 6 as a property, and reported faults of planners."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_lab.planning import PlanError, plan, split_steps, transformer_cost

lengths_lists = st.lists(st.integers(0, 40), max_size=60)


@given(lengths=lengths_lists, spare=st.integers(0, 40), ranks=st.integers(1, 6))
def test_nothing_is_dropped_and_no_micro_batch_exceeds_the_budget(lengths: list[int], spare: int, ranks: int) -> None:
    budget = max([1, *lengths]) + spare
    made = plan(lengths, budget, ranks)
    assert sorted(row for rows in made.micro_batches for row in rows) == list(range(len(lengths)))
    assert all(sum(lengths[row] for row in rows) <= budget for rows in made.micro_batches)
    assert sorted(index for indices in made.ranks for index in indices) == list(range(len(made.micro_batches)))
    assert len(made.ranks) == ranks and len({len(indices) for indices in made.ranks}) == 1
    assert made == plan(list(lengths), budget, ranks), "deterministic"
    assert made.imbalance == pytest.approx(_imbalance(lengths, [made.of_rank(rank) for rank in range(ranks)]))


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_at_most_twice_the_micro_batches_that_the_tokens_need(lengths: list[int]) -> None:
    made = plan(lengths, 40)
    assert len(made.micro_batches) <= 2 * -(-sum(lengths) // 40)


def test_verl_7553_no_micro_batch_above_the_budget() -> None:
    assert plan([7] * 8, 8).micro_batches == [[i] for i in range(8)]


def test_verl_3035_seven_samples_on_four_ranks_are_padded() -> None:
    made = plan([5] * 7, 5, 4)
    assert [len(made.of_rank(rank)) for rank in range(4)] == [2, 2, 2, 2]
    assert sum(rows == [] for rank in range(4) for rows in made.of_rank(rank)) == 1


def test_the_example_of_the_docstring() -> None:
    assert plan([5, 3, 4], 8).micro_batches == [[2, 1], [0]]


def test_nothing_to_plan() -> None:
    assert plan([], 8).micro_batches == []
    assert plan([], 8, 3).of_rank(2) == []


@pytest.mark.parametrize(("lengths", "budget", "ranks"), [([3, 9], 8, 1), ([1], 0, 1), ([1], 8, 0)])
def test_what_cannot_be_planned_is_named(lengths: list[int], budget: int, ranks: int) -> None:
    with pytest.raises(PlanError):
        plan(lengths, budget, ranks)


def test_the_error_names_the_row() -> None:
    with pytest.raises(PlanError, match=r"Row 1 has 9 tokens, more than the budget of 8\..*samples\.cut"):
        plan([3, 9], 8)


def _imbalance(lengths: list[int], by_rank: list[list[list[int]]]) -> float:
    """Straight from its definition."""
    total = sum(24576 * length + length**2 for length in lengths)
    slots = zip(*by_rank, strict=True)
    dearest = [max(sum(24576 * lengths[i] + lengths[i] ** 2 for i in rows) for rows in slot) for slot in slots]
    return sum(dearest) * len(by_rank) / total if total else 1.0


def _log_normal(seed: int, count: int) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(np.log(200), np.log(20) / 2.326, count)
    return np.clip(drawn.astype(int), 1, 8192).tolist()


def test_compute_is_balanced_over_many_ranks() -> None:
    lengths = _log_normal(0, 4096)
    made = plan(lengths, 16_384, 64)
    assert made.imbalance <= 1.03
    assert all(sum(lengths[i] for i in rows) <= 16_384 for rows in made.micro_batches)


@pytest.mark.parametrize("seed", range(6))
def test_at_least_as_balanced_as_karmarkar_karp(seed: int) -> None:
    lengths = _log_normal(seed, 40 + 20 * seed)
    ranks = 2 + seed
    differencing = _imbalance(lengths, [[rows] for rows in _karmarkar_karp(lengths, ranks)])
    assert plan(lengths, sum(lengths), ranks).imbalance <= differencing + 0.005


def _karmarkar_karp(lengths: list[int], parts: int) -> list[list[int]]:
    """The largest differencing method: join the two partial partitions that differ most, dear parts with cheap ones."""
    costs = [24576 * length + length**2 for length in lengths]
    open_sets = [[(0, []) for _ in range(parts - 1)] + [(costs[i], [i])] for i in range(len(lengths))]
    while len(open_sets) > 1:
        open_sets.sort(key=lambda one: one[-1][0] - one[0][0])
        first, second = open_sets.pop(), open_sets.pop()
        joined = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(first, reversed(second), strict=True)]
        open_sets.append(sorted(joined, key=lambda part: part[0]))
    return [rows for _, rows in open_sets[0]]


def test_any_cost_may_be_balanced() -> None:
    lengths = [8, 4, 4, 4, 4]
    by_attention = plan(lengths, 24, 2, cost=lambda length: length**2)
    assert [sorted(rows) for rows in by_attention.micro_batches] == [[0], [1, 2, 3, 4]] and by_attention.imbalance == 1
    by_tokens = plan(lengths, 24, 2, cost=lambda length: length)
    assert sorted(sum(lengths[i] for i in rows) for rows in by_tokens.micro_batches) == [12, 12]
    assert transformer_cost(np.array([2.0])).tolist() == [24576 * 2 + 4]


@given(rows=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40)), max_size=40), steps=st.integers(1, 5))
def test_a_rollout_is_consumed_by_one_optimiser_step(rows: list[tuple[int, int]], steps: int) -> None:
    owners, lengths = [owner for owner, _ in rows], [length for _, length in rows]
    made = split_steps(owners, lengths, steps)
    assert len(made) == steps and sorted(i for step in made for i in step) == list(range(len(rows)))
    for owner in set(owners):
        assert sum(any(owners[i] == owner for i in step) for step in made) == 1
    assert made == split_steps(owners, lengths, steps)


def test_steps_are_balanced_and_bad_input_is_named() -> None:
    owners, lengths = [0, 0, 1, 2, 2, 3], [5, 5, 10, 4, 6, 10]
    assert [sum(lengths[i] for i in step) for step in split_steps(owners, lengths, 2)] == [20, 20]
    with pytest.raises(PlanError):
        split_steps(owners, lengths, 0)
    with pytest.raises(PlanError):
        split_steps(owners, lengths[:2], 1)
