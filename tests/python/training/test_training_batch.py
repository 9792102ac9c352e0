"""Groups → an update's input: credit per rollout, weights that do not know about cuts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_fakes import agent, make_tasks

from lightning_lab.algorithms import ESTIMATORS
from lightning_lab.policy.base import LossRow
from lightning_lab.records import Outcome, Rollout, RolloutState, Sample, Segment
from lightning_lab.samples import SampleSet
from lightning_lab.training import TrainConfig
from lightning_lab.training.batch import Batch, build_batch
from lightning_lab.training.collecting import Group


def make_sample(rollout_id: str, tokens: int, *, context: int = 2, masked: int = 0) -> Sample:
    """``context`` ids, then one call of ``tokens`` sampled ids of which the first ``masked`` do not train."""
    size = context + tokens
    mask = np.arange(size) >= context + masked
    return Sample(
        rollout_id=rollout_id,
        ids=np.arange(size, dtype=np.int32),
        mask=mask,
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        versions=np.where(mask, 4, -1).astype(np.int32),
        segments=(Segment(call_id=f"c-{rollout_id}", start=context, stop=size),),
        masked={"no_logprob": masked} if masked else {},
    )


def make_rollout(rollout_id: str, reward: float | None, outcome: Outcome = Outcome.COMPLETED) -> Rollout:
    state = RolloutState.SUCCEEDED if outcome is Outcome.COMPLETED else RolloutState.FAILED
    return Rollout(
        id=rollout_id, run_id="run", group_id="g", task=make_tasks(1)[0], harness=agent.info, mode="train",
        state=state, outcome=outcome, reward=reward,
    )  # fmt: skip


def make_batch(groups: Sequence[Sequence[tuple[float | None, Sequence[int]]]], **settings: object) -> Batch:
    """Each rollout is its reward and the trained tokens of its samples."""
    made, sample_sets = [], {}
    for g, members in enumerate(groups):
        rollouts = [make_rollout(f"r{g}{i}", reward) for i, (reward, _) in enumerate(members)]
        made.append(Group(f"g{g}", tuple(rollouts)))
        for rollout, (_, tokens) in zip(rollouts, members, strict=True):
            sample_sets[rollout.id] = SampleSet([make_sample(rollout.id, count) for count in tokens], [])
    return build_batch(made, sample_sets, TrainConfig(steps=1, **settings), 3, 6)  # type: ignore[arg-type]


def flat(batch: Batch) -> list[list[LossRow]]:
    return [micro_batch for update in batch.updates for micro_batch in update]


def rows_of(batch: Batch) -> dict[str, list[LossRow]]:
    rows = [row for micro_batch in flat(batch) for row in micro_batch]
    return {rollout.id: [row for row in rows if row.sample.rollout_id == rollout.id] for rollout in batch.rollouts}


def test_agent_lightning_444_many_samples_do_not_move_the_baseline() -> None:
    one = make_batch([[(1.0, [9]), (0.0, [9])]])
    many = make_batch([[(1.0, [9]), (0.0, [1] * 9)]])
    assert [r.advantage for r in one.rollouts] == [r.advantage for r in many.rollouts]
    assert [r.weight for r in one.rollouts] == [0.5, 0.5]
    assert [r.weight for r in many.rollouts] == pytest.approx([0.5, 0.5])
    assert {row.token_weight for row in rows_of(many)["r01"]} == {1 / (2 * 9)}


def test_advantages_by_sample_are_there_to_compare_with() -> None:
    """Nine samples of a failure pull the mean down to 1/10; a tenth, which trains nothing, does not count."""
    many = make_batch([[(1.0, [9]), (0.0, [1] * 9 + [0])]], advantage_unit="sample", estimator="dr_grpo")
    assert [r.advantage for r in many.rollouts] == pytest.approx([0.9, -0.1])
    assert {row.advantage for row in rows_of(many)["r01"]} == {many.rollouts[1].advantage}


a_rollout = st.tuples(st.sampled_from([0.0, 0.5, 1.0, None]), st.lists(st.integers(0, 5), max_size=4))


@given(rollouts=st.lists(a_rollout, min_size=1, max_size=6), estimator=st.sampled_from(sorted(ESTIMATORS)))
@settings(max_examples=60, deadline=None)
def test_credit_does_not_know_into_how_many_samples_a_rollout_was_cut(
    rollouts: list[tuple[float | None, list[int]]], estimator: str
) -> None:
    cut = make_batch([rollouts], estimator=estimator)
    whole = make_batch([[(reward, [sum(tokens)]) for reward, tokens in rollouts]], estimator=estimator)
    assert [r.advantage for r in cut.rollouts] == [r.advantage for r in whole.rollouts]
    assert [r.weight for r in cut.rollouts] == pytest.approx([r.weight for r in whole.rollouts])
    assert cut.skipped == whole.skipped and cut.metrics["no_tokens"] == whole.metrics["no_tokens"]


@pytest.mark.parametrize("normalizer", ["rollout_mean", "token_mean", "constant"])
def test_the_weight_of_a_token_does_not_depend_on_cuts(normalizer: str) -> None:
    whole = make_batch([[(1.0, [6]), (0.0, [4])]], normalizer=normalizer)
    cut = make_batch([[(1.0, [1, 2, 3]), (0.0, [3, 1])]], normalizer=normalizer)
    for rollout_id, rows in rows_of(whole).items():
        assert {r.token_weight for r in rows_of(cut)[rollout_id]} == {rows[0].token_weight}
    assert [r.weight for r in whole.rollouts] == pytest.approx([r.weight for r in cut.rollouts])


def test_rollouts_without_tokens_or_reward_are_no_part_of_the_mean() -> None:
    batch = make_batch([[(1.0, [4]), (0.0, []), (None, [4]), (0.0, [2])]])
    assert [r.weight for r in batch.rollouts] == [0.5, 0.0, 0.0, 0.5]
    assert batch.rollouts[2].advantage is None and batch.rollouts[1].advantage is not None
    assert rows_of(batch)["r02"] == []
    assert len(batch.samples) == 3, "all samples are kept for the record"
    assert batch.metrics["no_reward"] == 1 and batch.metrics["tokens"] == 6


def test_places_say_which_sample_of_which_rollout_a_row_is() -> None:
    batch = make_batch([[(1.0, [1, 9, 0, 4]), (0.0, [5])]], token_budget=12)
    rows = [row for micro_batch in flat(batch) for row in micro_batch]
    by_rollout = {r.id: [s for s in batch.samples if s.rollout_id == r.id] for r in batch.rollouts}
    assert len(flat(batch)) > 1 and len(rows) == 4
    for place, row in zip(batch.places, rows, strict=True):
        assert by_rollout[place.rollout_id][place.sample_index] is row.sample


def test_rllm_575_no_micro_batch_exceeds_the_budget_and_cuts_are_counted() -> None:
    batch = make_batch([[(1.0, [30]), (0.0, [3, 7])]], token_budget=10)
    assert all(sum(len(row.sample.ids) for row in rows) <= 10 for rows in flat(batch))
    assert batch.metrics["masked_over_budget"] == 30
    assert [r.weight for r in batch.rollouts] == [0.0, 1.0]


def test_trl_6166_a_masked_token_has_no_weight_and_is_counted() -> None:
    rollouts = (make_rollout("a", 1.0), make_rollout("b", 0.0))
    sets = {"a": SampleSet([make_sample("a", 5, masked=2)], []), "b": SampleSet([make_sample("b", 5)], [])}
    batch = build_batch([Group("g", rollouts)], sets, TrainConfig(steps=1), 0, 5)
    assert rows_of(batch)["a"][0].token_weight == 1 / (2 * 3)
    assert batch.metrics["masked_no_logprob"] == 2 and batch.metrics["staleness"] == 1.0


def test_easyr1_585_groups_without_signal_are_counted_and_keep_their_place_in_the_mean() -> None:
    batch = make_batch([[(1.0, [2]), (1.0, [2])], [(1.0, [2]), (0.0, [2])]])
    assert batch.metrics["no_signal"] == 1 and batch.skipped == ""
    assert [r.advantage == 0.0 for r in batch.rollouts] == [True, True, False, False]
    assert [r.weight for r in batch.rollouts] == [0.25] * 4


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([[(None, [2]), (None, [2])]], "no_rewards"),
        ([[(1.0, []), (0.0, [0])]], "no_tokens"),
        ([[(1.0, [2]), (1.0, [2])]], "no_signal"),
        ([[(1.0, [2])]], "no_signal"),  # a group of one
        ([[(float("nan"), [2]), (float("inf"), [2]), (float("-inf"), [2])]], "no_rewards"),
        ([[(1.0, [2]), (float("nan"), [2])]], "no_signal"),  # one is left
        ([], "no_rewards"),
    ],
)
def test_a_batch_that_teaches_nothing_says_why(groups: list[list[tuple[float | None, list[int]]]], reason: str) -> None:
    batch = make_batch(groups)
    assert batch.skipped == reason
    assert all(np.isfinite(value) for value in batch.metrics.values())


@pytest.mark.parametrize("normalizer", ["rollout_mean", "token_mean", "sample_mean", "constant"])
def test_several_updates_keep_rollouts_whole_and_count_their_own(normalizer: str) -> None:
    groups = [[(1.0, [2, 3]), (0.0, [4])], [(1.0, [1, 1, 1]), (0.0, [5])], [(0.0, []), (None, [9])]]
    batch = make_batch(groups, updates=2, token_budget=8, normalizer=normalizer)
    one = make_batch(groups, token_budget=8, normalizer=normalizer)
    assert [len(update) > 1 for update in batch.updates] == [True, True] and len(one.updates) == 1
    owners = [{row.sample.rollout_id for rows in update for row in rows} for update in batch.updates]
    assert owners[0].isdisjoint(owners[1]) and set.union(*owners) == {"r00", "r01", "r10", "r11"}
    assert sum(rollout.weight or 0 for rollout in batch.rollouts) == pytest.approx(1.0)
    assert [r.advantage for r in batch.rollouts] == [r.advantage for r in one.rollouts], "groups go across updates"
    for update in batch.updates:
        total = sum(row.token_weight * row.sample.mask.sum() for rows in update for row in rows)
        lengths = {"constant": sum(row.sample.mask.sum() for rows in update for row in rows) / (1024 * 2)}
        assert total == pytest.approx(lengths.get(normalizer, 1.0))
    lines, plan = batch.consumed()
    assert [line["update"] for line in lines] == sorted(line["update"] for line in lines) and len(lines) == 7
    assert [index for rows in plan for index in rows] == list(range(7))


def test_more_updates_than_rollouts_leave_none_empty() -> None:
    assert [len(update) for update in make_batch([[(1.0, [2]), (0.0, [2])]], updates=5).updates] == [1, 1]


def test_shuffled_rewards_are_a_permutation_fixed_by_seed_and_step() -> None:
    groups = [[(float(i), [2]) for i in range(8)]]
    plain = make_batch(groups, estimator="dr_grpo")
    shuffled = make_batch(groups, estimator="dr_grpo", shuffle_rewards=True)
    again = make_batch(groups, estimator="dr_grpo", shuffle_rewards=True)
    advantages = [r.advantage for r in shuffled.rollouts]
    assert advantages == [r.advantage for r in again.rollouts] != [r.advantage for r in plain.rollouts]
    assert sorted(a or 0 for a in advantages) == sorted(r.advantage or 0 for r in plain.rollouts)
    assert [r.reward for r in shuffled.rollouts] == [r.reward for r in plain.rollouts]


def test_options_are_reached_by_name() -> None:
    groups = [[(1.0, [2]), (0.0, [2])], [(0.5, [2])]]
    advantages = [r.advantage for r in make_batch(groups, singleton="reward", estimator="dr_grpo").rollouts]
    assert advantages == [0.5, -0.5, 0.5]
    whitened = [r.advantage or 0.0 for r in make_batch(groups, estimator="reinforce_pp").rollouts]
    assert sum(whitened) == pytest.approx(0.0, abs=1e-9) and whitened[0] == pytest.approx(1.0, rel=1e-6)


def test_versions_from_the_future_are_counted_and_make_nobody_younger() -> None:
    groups = [Group("g", (make_rollout("a", 1.0), make_rollout("b", 0.0)))]
    sets = {name: SampleSet([make_sample(name, 5)], []) for name in ("a", "b")}
    batch = build_batch(groups, sets, TrainConfig(steps=1), 0, 2)  # they were sampled by version 4
    assert batch.metrics["future_versions"] == 10 and batch.metrics["staleness"] == 0


def test_padding_is_the_share_of_slots_that_hold_no_token() -> None:
    """Rows of 4 and 10 tokens in one micro-batch: 6 of its 20 slots are empty."""
    metrics = make_batch([[(1.0, [2]), (0.0, [8])]]).metrics
    assert (metrics["length_mean"], metrics["length_max"]) == (7.0, 10.0)
    assert metrics["padding"] == pytest.approx(6 / 20)
    assert make_batch([[(1.0, [8]), (0.0, [8])]]).metrics["padding"] == 0.0
    assert "padding" not in make_batch([[(None, []), (1.0, [])]]).metrics
