"""Packed rows do not see each other; options of an update by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_lab.policy.base import LossRow, PolicyError, UpdateResult
from lightning_lab.policy.torch import TorchPolicy, learner
from lightning_lab.policy.torch.batch import Cluster, clusters, make_batch, read_prefix, trained_logits
from lightning_lab.policy.torch.packing import pack, packed_logits, packs, pays
from lightning_lab.records import Sample, Segment

MakeRow = Callable[..., LossRow]
CPU = torch.device("cpu")


@pytest.fixture
def policy(model_directory: Path) -> Iterator[TorchPolicy]:
    policy = TorchPolicy(model_directory, seed=3, train_threads=1)
    policy.start()
    yield policy
    policy.close()


def row_of(length: int, seed: int, *, shared: int = 0, calls: int = 1) -> LossRow:
    """The second half trains, in so many calls; the first ``shared`` ids are those of every such row."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 256, length).astype(np.int32)
    ids[:shared] = np.arange(shared)
    start = max(shared + 1, length // 2)
    mask = np.arange(length) >= start
    stops = np.linspace(start, length, calls + 1).astype(int)
    segments = [Segment(call_id=f"c{i}", start=int(stops[i]), stop=int(stops[i + 1])) for i in range(calls)]
    logprobs = np.where(mask, -5.0 + rng.normal(0, 0.3, length), 0.0).astype(np.float32)
    sample = Sample(
        rollout_id=f"r{seed}", ids=ids, mask=mask, logprobs=logprobs, versions=np.zeros(length, np.int32),
        segments=tuple(segments),
    )  # fmt: skip
    return LossRow(sample=sample, advantage=(-1.0) ** seed, token_weight=1.0 / int(mask.sum()))


def logits_of(policy: TorchPolicy, rows: list[LossRow], shared: int = 0) -> list[torch.Tensor]:
    """By row."""
    forward = policy._learner._forward
    with torch.no_grad():
        prefix = read_prefix(forward, Cluster(rows, shared), CPU, torch.float32)
        batch, lengths = pack(rows, shared, CPU)
        found = packed_logits(forward, prefix, batch, lengths)
    return list(found.split([int(row.sample.mask.sum()) for row in rows]))


@pytest.mark.parametrize("shared", [0, 70])
def test_a_row_in_a_pack_has_the_numbers_of_the_row_alone(policy: TorchPolicy, shared: int) -> None:
    rows = [row_of(length, seed, shared=shared) for seed, length in enumerate((120, 90, 101))]
    together = logits_of(policy, rows, shared)
    for row, found in zip(rows, together, strict=True):
        with torch.no_grad():
            prefix = read_prefix(policy._learner._forward, Cluster([row], 0), CPU, torch.float32)
            alone = trained_logits(policy._learner._forward, prefix, make_batch([row], 0, CPU), torch.float32)
        torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shared", [0, 70])
def test_changing_a_row_leaves_its_pack_neighbours_bit_equal(policy: TorchPolicy, shared: int) -> None:
    rows = [row_of(length, seed, shared=shared) for seed, length in enumerate((120, 90, 101))]
    changed = [rows[0], row_of(90, 77, shared=shared), rows[2]]
    before, after = logits_of(policy, rows, shared), logits_of(policy, changed, shared)
    assert torch.equal(before[0], after[0]) and torch.equal(before[2], after[2])
    assert not torch.equal(before[1], after[1])


def test_packs_hold_every_row_within_the_budget() -> None:
    rows = [row_of(length, seed) for seed, length in enumerate((9, 40, 12, 30, 21, 5))]
    for budget in (10, 40, 45, 1000, None):
        made = packs(Cluster(rows, 0), budget)
        assert sorted(row.sample.rollout_id for part in made for row in part) == [f"r{i}" for i in range(6)]
        for part in made:
            read = sum(len(row.sample.ids) - 1 for row in part)
            assert budget is None or len(part) == 1 or read <= budget
            batch, lengths = pack(part, 0, CPU)
            assert batch.ids.shape == (1, read) and sum(lengths) == read, "no padding"


def test_packing_is_chosen_where_padding_would_cost_more() -> None:
    alike = [row_of(100 + seed, seed) for seed in range(8)]
    unlike = [row_of(length, seed) for seed, length in enumerate((20, 30, 40, 200, 300))]
    assert not pays(Cluster(alike, 0), 1024) and pays(Cluster(unlike, 0), None)
    assert pays(Cluster([row_of(600, 0)], 0), 1024)


@pytest.mark.parametrize("shared", [0, 70])
@pytest.mark.parametrize("options", [{}, {"kl_coef": 0.3, "old": "recomputed", "corrections": {"icepop": {}}}])
def test_packing_and_padding_are_the_same_step(
    policy: TorchPolicy, monkeypatch: pytest.MonkeyPatch, shared: int, options: dict[str, object]
) -> None:
    rows = [row_of(length, seed, shared=shared, calls=2) for seed, length in enumerate((120, 90, 101))]
    policy.update([rows], loss="policy_gradient", options={}, learning_rate=1e-3)  # away from the reference
    seen = []
    for packed in (True, False):
        monkeypatch.setattr(learner, "pays", lambda *_, packed=packed: packed)
        seen.append(policy.update([rows], loss="gspo", options=options, learning_rate=0.0))
    assert dict(seen[0].metrics) == pytest.approx(dict(seen[1].metrics), rel=2e-3, abs=1e-4)
    for left, right in zip(seen[0].tokens, seen[1].tokens, strict=True):
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-4)


def test_a_token_knows_its_call(policy: TorchPolicy) -> None:
    rows = [row_of(10, 0, calls=2), row_of(8, 1)]
    batch, _ = pack(rows, 0, CPU)
    assert len(batch.sequences) == 9
    parts = [batch.sequences[:5].tolist(), batch.sequences[5:].tolist()]
    assert parts[0] == sorted(parts[0]) and len(set(parts[0])) == 2 and not set(parts[0]) & set(parts[1])
    assert len(set(parts[1])) == 1


@pytest.mark.parametrize("loss", ["ppo_clip", "gspo", "cispo", "policy_gradient"])
def test_micro_batches_and_packs_leave_every_loss_equal(policy: TorchPolicy, loss: str) -> None:
    rows = [row_of(length, seed, calls=2) for seed, length in enumerate((60, 30, 44))]
    options = {"old": "recomputed", "corrections": {"sequence_tis": {"cap": 3.0}}}
    one = policy.update([rows], loss=loss, options=options, learning_rate=0.0)
    many = policy.update([[row] for row in rows], loss=loss, options=options, learning_rate=0.0)
    assert one.metrics["grad_norm"] == pytest.approx(many.metrics["grad_norm"], rel=1e-4)
    for left, right in zip(one.tokens, many.tokens, strict=True):
        np.testing.assert_allclose(left.loss, right.loss, atol=1e-5)


def test_masks_are_counted_and_shown_in_the_rollouts_weights(policy: TorchPolicy) -> None:
    near, far = row_of(60, 0), row_of(60, 1)
    far = replace(far, sample=replace(far.sample, logprobs=far.sample.logprobs - 3.0))

    def update(corrections: dict[str, dict[str, float]]) -> UpdateResult:
        return policy.update([[near, far]], loss="ppo_clip", options={"corrections": corrections}, learning_rate=0.0)

    plain = update({})
    assert plain.metrics["effective_rollouts"] == pytest.approx(2.0) and 0 < plain.metrics["ess"] <= 1
    means = [float(np.nanmean(np.log(stats.ratio))) for stats in plain.tokens]
    found = update({"geometric_mask": {"low": 0.0, "high": float(np.exp(sum(means) / 2))}})
    assert found.metrics["masked_geometric_mask"] == 30, "the far row"
    assert found.rollout_weights == {"r0": 1.0, "r1": 0.0} and plain.rollout_weights == pytest.approx(
        {"r0": 0.5, "r1": 0.5}
    )
    assert found.metrics["effective_rollouts"] == pytest.approx(1.0) and found.metrics["rollout_weight_max"] == 1.0
    assert np.nansum(np.abs(found.tokens[1].loss)) == 0 < np.nansum(np.abs(found.tokens[0].loss))


def test_recomputed_log_probs_make_the_ratio_one(policy: TorchPolicy) -> None:
    found = policy.update([[row_of(40, 0)]], loss="ppo_clip", options={"old": "recomputed"}, learning_rate=0.0)
    assert found.metrics["ratio_min"] == found.metrics["ratio_max"] == 1.0 and found.metrics["ess"] == 1.0


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_is_to_the_model_as_it_was_loaded(policy: TorchPolicy, estimator: str) -> None:
    rows = [row_of(90, seed, shared=70) for seed in range(2)]
    assert [cluster.shared for cluster in clusters(rows)] == [70]
    options = {"kl_coef": 0.1, "kl_estimator": estimator}
    first = policy.update([rows], loss="policy_gradient", options=options, learning_rate=3e-3)
    assert first.metrics["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert first.metrics["loss"] == pytest.approx(sum(float(np.nansum(s.loss)) for s in first.tokens), abs=1e-5)
    after = policy.update([rows], loss="policy_gradient", options=options, learning_rate=0.0)
    assert abs(after.metrics["reference_kl"]) > 1e-5
    assert estimator == "k1" or after.metrics["reference_kl"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"old": "new"}, "'rollout' or 'recomputed'"),
        ({"corrections": {"tis": {}}}, "no correction tis"),
        ({"corrections": {"token_tis": {}}}, "old='recomputed'"),
        ({"kl_estimator": "k4"}, "no kl_estimator 'k4'"),
    ],
)
def test_options_that_cannot_work_are_named(policy: TorchPolicy, options: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy.update([[row_of(20, 0)]], loss="ppo_clip", options=options, learning_rate=0.1)


@pytest.mark.parametrize("wrong", [100_000, -1])
def test_ids_out_of_vocabulary_are_named_before_anything_is_read(policy: TorchPolicy, wrong: int) -> None:
    row = row_of(20, 0)
    row.sample.ids[3] = wrong
    with pytest.raises(PolicyError, match=r"rollout r0 has ids .*another vocabulary"):
        policy.update([[row]], loss="ppo_clip", options={}, learning_rate=0.1)
