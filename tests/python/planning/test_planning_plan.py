"""Contract 6 as a property, and reported faults of planners."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_lab.planning import PlanError, plan

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
    assert plan([5, 3, 4], 8).micro_batches == [[0], [2, 1]]


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
