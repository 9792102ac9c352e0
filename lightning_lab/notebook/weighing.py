"""What each rollout of a group weighs in its step's loss, and what it would weigh under the other normalisers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_lab.algorithms import CUT_DEPENDENT, NORMALIZERS, group_statistics, rollout_shares, token_weights
from lightning_lab.notebook.plain import finite
from lightning_lab.records import Break, Rollout
from lightning_lab.samples import trained_tokens
from lightning_lab.store import Store

_SAME = 0.05
"""A weight that differs by less than this part is not worth a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """One rollout of a step."""

    rollout: Rollout
    tokens: Sequence[int]
    """Trained tokens of each of its samples."""
    breaks: Sequence[Break]
    ghosts: Mapping[str, float]
    """Its share of the step's loss by normaliser; empty when it has none."""


def weigh_group(store: Store, rollout_id: str) -> dict[str, Any]:
    """The rollout's group with rewards, advantages, weights and ghost weights, and one sentence about the rollout.

    Raises `store.UnknownIdError`.
    """
    rollout = store.rollout(rollout_id)
    mates = store.rollouts(rollout.run_id, group_id=rollout.group_id)
    weighed = _weighed(store, rollout, mates)
    settings = store.run(rollout.run_id).settings
    own = next(item for item in weighed if item.rollout.id == rollout_id)
    rewards = np.array([np.nan if r.reward is None else r.reward for r in mates], np.float64)
    flat = bool(group_statistics(rewards, np.zeros(len(mates), np.int64), np.isfinite(rewards)).flat.any())
    normalizer = str(settings.get("normalizer", ""))
    return {
        "step": rollout.step,
        "normalizer": normalizer,
        "normalizers": sorted(NORMALIZERS),
        "flat": flat and len(mates) > 1,
        "sentence": sentence(own, normalizer, flat and len(mates) > 1),
        "rollouts": [_fields(item) for item in weighed],
    }


def _weighed(store: Store, rollout: Rollout, mates: Sequence[Rollout]) -> list[Weighed]:
    """Weights are shares of the whole step, so all its rollouts are looked at; only the group's are returned."""
    step = mates if rollout.step is None else store.rollouts(rollout.run_id, step=rollout.step)
    tokens = {r.id: [trained_tokens(sample) for sample in store.samples(r.id)] for r in step}
    ghosts = _ghosts(store, rollout, {r.id: tokens[r.id] for r in step if r.reward is not None})
    return [
        Weighed(
            rollout=mate,
            tokens=tokens.get(mate.id, []),
            breaks=store.breaks(rollout_id=mate.id),
            ghosts=ghosts.get(mate.id, {}),
        )
        for mate in mates
    ]


def _ghosts(store: Store, rollout: Rollout, tokens: Mapping[str, Sequence[int]]) -> dict[str, dict[str, float]]:
    names = list(tokens)
    owner = np.array([place for place, name in enumerate(names) for n in tokens[name] if n], np.int64)
    counts = np.array([n for name in names for n in tokens[name] if n], np.int64)
    if rollout.step is None or not len(counts):
        return {}
    constant = float(store.run(rollout.run_id).settings.get("constant", 1024.0))
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for normalizer in sorted(NORMALIZERS):
        weights = token_weights(normalizer, owner, counts, constant=constant)
        for place, share in zip(owner.tolist(), rollout_shares(owner, counts, weights).tolist(), strict=True):
            found[names[place]][normalizer] = share
    return found


def _fields(item: Weighed) -> dict[str, Any]:
    rollout = item.rollout
    return {
        "id": rollout.id,
        "state": str(rollout.state),
        "outcome": str(rollout.outcome or ""),
        "reward": finite(rollout.reward),
        "advantage": finite(rollout.advantage),
        "weight": finite(rollout.weight),
        "samples": len(item.tokens),
        "tokens": sum(item.tokens),
        "breaks": len(item.breaks),
        "ghosts": {name: finite(share) for name, share in item.ghosts.items()},
    }


def sentence(own: Weighed, normalizer: str, flat: bool) -> str:
    """What is worth knowing first: why it does not count, or how it was cut and what that would cost elsewhere."""
    rollout = own.rollout
    if rollout.state in ("queuing", "running"):
        return ""
    if rollout.reward is None:
        return f"No reward ({rollout.outcome or 'no outcome'}): left out of its group's statistics and of the loss."
    parts = [_cut_words(own)]
    if flat:
        parts.append("all rewards of its group are equal, so it gives no signal")
    elif rollout.step is None:
        trains = rollout.mode == "train"
        parts.append("no step has consumed it yet" if trains else f"{rollout.mode} rollouts are not trained on")
    else:
        parts.append(_weight_words(own, normalizer))
    text = "; ".join(part for part in parts if part)
    return text[:1].upper() + text[1:] + "." if text else ""


def _cut_words(own: Weighed) -> str:
    causes = sorted({str(item.cause) for item in own.breaks})
    if len(own.tokens) > 1 and causes:
        return f"cut into {len(own.tokens)} samples by {', '.join(causes)}"
    if len(own.tokens) > 1:
        return f"it branches into {len(own.tokens)} samples"
    return ""


def _weight_words(own: Weighed, normalizer: str) -> str:
    weight = own.rollout.weight or 0.0
    if not weight:
        return "it weighs nothing: none of its tokens trains"
    factors = {name: share / weight for name, share in own.ghosts.items() if name != normalizer}
    if not factors:
        return ""
    cut = [name for name in CUT_DEPENDENT if name in factors and abs(factors[name] - 1) >= _SAME]
    name = cut[0] if cut else max(factors, key=lambda key: abs(np.log(max(factors[key], 1e-9))))
    if abs(factors[name] - 1) < _SAME:
        return "every normaliser gives it the same weight"
    return f"it would weigh {factors[name]:.1f}× under {name}"
