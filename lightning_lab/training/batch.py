"""Groups → what one update consumes: samples, advantages, weights, micro-batches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lightning_lab.algorithms import (
    compute_advantages,
    group_statistics,
    rollout_shares,
    sample_level_advantages,
    token_weights,
)
from lightning_lab.algorithms.advantages import BoolArray, FloatArray, IntArray
from lightning_lab.planning import plan, split_steps
from lightning_lab.policy.base import LossRow
from lightning_lab.records import Break, Rollout, Sample
from lightning_lab.samples import SampleSet, cut, trained_tokens
from lightning_lab.training.collecting import Group
from lightning_lab.training.config import TrainConfig
from lightning_lab.training.rewards import is_infrastructure, valid_reward


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Which sample of which rollout a row is."""

    rollout_id: str
    sample_index: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input, ready for the learner."""

    rollouts: list[Rollout]
    """As they came, with the advantage and the share of the loss filled in."""
    samples: list[Sample]
    """All samples, cut to fit, those included that train nothing; in the order of the rollouts."""
    breaks: list[Break]
    updates: list[list[list[LossRow]]]
    """Micro-batches by optimiser update; a rollout's rows all belong to one update."""
    places: list[RowPlace]
    """Of the rows, in the order of the updates and their micro-batches."""
    skipped: str
    """Why there is nothing to learn: ``no_rewards``, ``no_tokens``, ``no_signal``, or empty."""
    metrics: dict[str, float]

    def consumed(self) -> tuple[list[dict[str, Any]], list[list[int]]]:
        """What the run folder keeps: one line per row, and the plan as indices into them."""
        lines: list[dict[str, Any]] = []
        plan: list[list[int]] = []
        places = iter(self.places)
        for update, micro_batches in enumerate(self.updates):
            for micro_batch in micro_batches:
                plan.append(list(range(len(lines), len(lines) + len(micro_batch))))
                lines += [_line(update, row, next(places)) for row in micro_batch]
        return lines, plan


def _line(update: int, row: LossRow, place: RowPlace) -> dict[str, Any]:
    return {
        "update": update,
        "rollout_id": place.rollout_id,
        "sample_index": place.sample_index,
        "tokens": len(row.sample.ids),
        "trained": int(row.sample.mask.sum()),
        "advantage": row.advantage,
        "token_weight": row.token_weight,
    }


def build_batch(
    groups: Sequence[Group], sample_sets: Mapping[str, SampleSet], config: TrainConfig, step: int, version: int
) -> Batch:
    """Pure: the same input gives the same batch. ``sample_sets`` by rollout id; ``version`` samples now."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    group_of = np.array([index for index, group in enumerate(groups) for _ in group.rollouts], np.int64)
    rewards = np.array([_or_nan(valid_reward(rollout)) for rollout in rollouts], np.float64)
    valid = np.isfinite(rewards)
    used = _shuffled(rewards, valid, config.seed, step) if config.shuffle_rewards else rewards
    owner, samples = _cut_samples(rollouts, sample_sets, config.sample_limit)
    tokens = np.array([trained_tokens(sample) for sample in samples], np.int64)
    chosen = [i for i in range(len(samples)) if tokens[i] and valid[owner[i]]]
    chosen_owner, chosen_tokens = owner[chosen], tokens[chosen]
    advantages = _advantages(config, used, group_of, valid, chosen_owner)
    lengths = [len(samples[i].ids) for i in chosen]
    updates = [update for update in split_steps(chosen_owner.tolist(), lengths, config.updates) if update]
    weights, shares = _weights(config, updates, chosen_owner, chosen_tokens)
    rows = [
        LossRow(sample=samples[i], advantage=float(advantages[owner[i]]), token_weight=float(weight))
        for i, weight in zip(chosen, weights, strict=True)
    ]
    micro_batches = [_planned(update, lengths, config.token_budget) for update in updates]
    first_sample = np.searchsorted(owner, np.arange(len(rollouts)))
    places = [RowPlace(rollouts[owner[i]].id, int(i - first_sample[owner[i]])) for i in chosen]
    return Batch(
        rollouts=[_consumed(r, i, step, valid, advantages, shares) for i, r in enumerate(rollouts)],
        samples=samples,
        breaks=[b for rollout in rollouts for b in sample_sets[rollout.id].breaks],
        updates=[[[rows[index] for index in indices] for indices in update] for update in micro_batches],
        places=[places[index] for update in micro_batches for indices in update for index in indices],
        skipped=_skip_reason(valid, rows),
        metrics={
            **_counts(rollouts, rewards, used, group_of, samples, rows, version),
            **_lengths([[lengths[i] for i in micro_batch] for update in micro_batches for micro_batch in update]),
        },
    )


def _advantages(
    config: TrainConfig, rewards: FloatArray, group: IntArray, valid: BoolArray, owner: IntArray
) -> FloatArray:
    """Per rollout. ``owner``: the rollout of each sample that trains."""
    if config.advantage_unit == "sample":
        samples = np.bincount(owner, minlength=len(rewards))
        return sample_level_advantages(config.estimator, rewards, group, valid, samples, singleton=config.singleton)
    return compute_advantages(config.estimator, rewards, group, valid, singleton=config.singleton)


def _weights(
    config: TrainConfig, updates: Sequence[Sequence[int]], owner: IntArray, tokens: IntArray
) -> tuple[FloatArray, dict[int, float]]:
    """Weight of each row's tokens, and each rollout's share of the step. Every update counts its own rollouts."""
    weights = np.zeros(len(owner))
    shares: dict[int, float] = {}
    for update in updates:
        here, trained = owner[update], tokens[update]
        weights[update] = token_weights(config.normalizer, here, trained, constant=config.constant)
        of_update = rollout_shares(here, trained, weights[update]) / len(updates)
        shares.update(zip(here.tolist(), of_update.tolist(), strict=True))
    return weights, shares


def _planned(update: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Micro-batches of one update, as indices of rows."""
    return [[update[i] for i in rows] for rows in plan([lengths[i] for i in update], budget).micro_batches]


def _cut_samples(
    rollouts: Sequence[Rollout], sample_sets: Mapping[str, SampleSet], limit: int
) -> tuple[IntArray, list[Sample]]:
    """Index of the owning rollout per sample, and the samples."""
    pairs = [(i, cut(s, limit)) for i, rollout in enumerate(rollouts) for s in sample_sets[rollout.id].samples]
    return np.array([i for i, _ in pairs], np.int64), [sample for _, sample in pairs]


def _shuffled(rewards: FloatArray, valid: BoolArray, seed: int, step: int) -> FloatArray:
    shuffled = rewards.copy()
    shuffled[valid] = np.random.default_rng([seed, step]).permutation(rewards[valid])
    return shuffled


def _consumed(
    rollout: Rollout, index: int, step: int, valid: BoolArray, advantages: FloatArray, shares: Mapping[int, float]
) -> Rollout:
    advantage = float(advantages[index]) if valid[index] else None
    reward = rollout.reward if rollout.reward is not None and math.isfinite(rollout.reward) else None
    return replace(rollout, reward=reward, step=step, advantage=advantage, weight=float(shares.get(index, 0.0)))


def _skip_reason(valid: BoolArray, rows: Sequence[LossRow]) -> str:
    if not valid.any():
        return "no_rewards"
    if not rows:
        return "no_tokens"
    return "" if any(row.advantage != 0.0 for row in rows) else "no_signal"


def _counts(
    rollouts: Sequence[Rollout],
    rewards: FloatArray,
    used: FloatArray,
    group_of: IntArray,
    samples: Sequence[Sample],
    rows: Sequence[LossRow],
    version: int,
) -> dict[str, float]:
    valid = np.isfinite(rewards)
    stats = group_statistics(used, group_of, valid)
    infrastructure = sum(is_infrastructure(rollout) for rollout in rollouts)
    masked: Counter[str] = Counter()
    for sample in samples:
        masked.update(sample.masked)
    versions = [row.sample.versions[row.sample.mask] for row in rows]
    behind = version - np.concatenate(versions) if versions else np.zeros(0)
    staleness = np.maximum(behind, 0)
    metrics = {
        "rollouts": float(len(rollouts)),
        "samples": float(len(samples)),
        "tokens": float(len(staleness)),
        "no_signal": float(len(np.unique(group_of[stats.flat]))),
        "infrastructure": float(infrastructure),
        "retries": float(sum(rollout.attempt - 1 for rollout in rollouts)),
        "no_reward": float(np.count_nonzero(~valid) - infrastructure),
        # Rollouts with a reward that train nothing: they never called the model, or every token is masked.
        "no_tokens": float(np.count_nonzero(valid) - len({row.sample.rollout_id for row in rows})),
        "staleness": float(staleness.mean()) if len(staleness) else 0.0,
        "staleness_max": float(staleness.max(initial=0)),
        # Tokens of versions that this policy has not reached: the store belongs to a run that was further.
        "future_versions": float(np.count_nonzero(behind < 0)),
        **{f"masked_{reason}": float(count) for reason, count in sorted(masked.items())},
    }
    if valid.any():
        metrics["reward"] = float(rewards[valid].mean())
    return metrics


def _lengths(micro_batches: Sequence[Sequence[int]]) -> dict[str, float]:
    """Tokens of the rows; the share of empty slots when each row is as long as the longest of its micro-batch."""
    lengths = [length for micro_batch in micro_batches for length in micro_batch]
    slots = sum(len(micro_batch) * max(micro_batch) for micro_batch in micro_batches if micro_batch)
    if not lengths:
        return {}
    return {
        "length_mean": sum(lengths) / len(lengths),
        "length_max": float(max(lengths)),
        "padding": 1.0 - sum(lengths) / slots,
    }


def _or_nan(reward: float | None) -> float:
    return float("nan") if reward is None else reward
