"""Answers of verl's own core_algos, so that tests can compare without verl. Writes verl_core_algos.json beside itself.

Run it in an environment of its own (verl 0.9.1 wants other versions than this package):

    pip install torch==2.13.0 verl==0.9.1 TransferQueue pyzmq msgspec cachetools nvtx
    python tests/data/make_verl_fixtures.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask
from verl.workers.config import ActorConfig

ROWS, LENGTH = 6, 5
GROUPS = [0, 0, 0, 0, 1, 1, 1, 2]
REWARDS = [1.0, 0.0, 0.0, 0.5, 1.0, 0.25, 0.0, 0.75]


def advantages() -> dict[str, list[float]]:
    """One token per response: verl's whitening is over tokens, ours over rollouts."""
    rewards = torch.tensor(REWARDS, dtype=torch.float64)[:, None]
    mask = torch.ones_like(rewards)
    index = np.array(GROUPS)

    def first(pair: tuple[torch.Tensor, torch.Tensor]) -> list[float]:
        return pair[0][:, 0].tolist()

    c = core_algos
    plain = c.compute_grpo_outcome_advantage(rewards.clone(), mask, index, norm_adv_by_std_in_grpo=False)
    return {
        "grpo": first(c.compute_grpo_outcome_advantage(rewards.clone(), mask, index)),
        "dr_grpo": first(plain),
        "rloo": first(c.compute_rloo_outcome_advantage(rewards.clone(), mask, index)),
        "reinforce_pp": first(
            c.compute_reinforce_plus_plus_outcome_advantage(rewards.clone(), mask, config=AlgoConfig(gamma=1.0))
        ),
    }


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    old = -3.0 * torch.rand((ROWS, LENGTH), generator=generator, dtype=torch.float64) - 0.05
    new = old + 0.6 * torch.randn((ROWS, LENGTH), generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, LENGTH + 1, (ROWS, 1), generator=generator)
    mask = (torch.arange(LENGTH)[None] < lengths).double()
    rows = torch.randn((ROWS, 1), generator=generator, dtype=torch.float64)
    return {"logprobs": new, "old_logprobs": old, "mask": mask, "advantages": rows.expand(-1, LENGTH).contiguous()}


def actor(**changes: Any) -> ActorConfig:
    return ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, ppo_mini_batch_size=ROWS, **changes
    )


def losses(given: dict[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    cases: dict[str, tuple[str, str, dict[str, float]]] = {
        "ppo_clip": ("vanilla", "ppo_clip", {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}),
        "ppo_dual_clip": ("vanilla", "ppo_clip", {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 1.3}),
        "gspo": ("gspo", "gspo", {"clip_low": 0.05, "clip_high": 0.1}),
        "cispo": ("cispo", "cispo", {"clip_low": 0.2, "clip_high": 0.28}),
    }
    return {name: _loss(given, *case) for name, case in cases.items()}


def _loss(given: dict[str, torch.Tensor], theirs: str, ours: str, options: dict[str, float]) -> dict[str, Any]:
    logprobs = given["logprobs"].clone().requires_grad_()
    config = actor(
        clip_ratio_low=options["clip_low"],
        clip_ratio_high=options["clip_high"],
        clip_ratio_c=options.get("dual_clip", 3.0),
    )
    loss, metrics = core_algos.get_policy_loss_fn(theirs)(
        given["old_logprobs"], logprobs, given["advantages"], given["mask"], loss_agg_mode="token-mean", config=config
    )
    loss.backward()
    assert logprobs.grad is not None
    clipped = metrics["actor/pg_clipfrac"] + metrics["actor/pg_clipfrac_lower"]
    return {
        "loss_name": ours,
        "options": options,
        "loss": loss.item(),
        "gradient": logprobs.grad.tolist(),
        "clip_frac": clipped,
    }


def aggregation(given: dict[str, torch.Tensor]) -> dict[str, float]:
    terms = -given["advantages"] * given["logprobs"]
    modes = {"token_mean": "token-mean", "rollout_mean": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"}
    return {
        ours: core_algos.agg_loss(terms, given["mask"], theirs, loss_scale_factor=1024).item()
        for ours, theirs in modes.items()
    }


def corrections(given: dict[str, torch.Tensor]) -> dict[str, Any]:
    log_ratio, mask = given["logprobs"] - given["old_logprobs"], given["mask"]

    def weights(level: str, threshold: float | str) -> list[list[float]]:
        return compute_rollout_correction_weights(log_ratio, mask, level, threshold)[0].tolist()

    def kept(option: str, threshold: str) -> list[list[float]]:
        return compute_rollout_rejection_mask(log_ratio, mask, option, threshold)[0].tolist()

    _, metrics = compute_rollout_correction_weights(log_ratio, mask, "token", 1e6)
    return {
        "ess": metrics["rollout_is_eff_sample_size"],
        "token_tis": {"options": {"cap": 1.5}, "factors": weights("token", 1.5)},
        "icepop": {"options": {"low": 0.6, "high": 1.6}, "factors": weights("token", "0.6_1.6")},
        "sequence_tis": {"options": {"cap": 1.5}, "factors": weights("sequence", 1.5)},
        "sequence_mask": {"options": {"low": 0.5, "high": 2.0}, "factors": kept("seq_sum_k1", "0.5_2.0")},
        "geometric_mask": {"options": {"low": 0.8, "high": 1.25}, "factors": kept("seq_mean_k1", "0.8_1.25")},
    }


def main() -> None:
    given = tensors()
    kl = {k: core_algos.kl_penalty(given["logprobs"], given["old_logprobs"], k).tolist() for k in ("k1", "k2", "k3")}
    answers = {
        "verl": "0.9.1",
        "rewards": REWARDS,
        "groups": GROUPS,
        "advantages": advantages(),
        "given": {name: values.tolist() for name, values in given.items()},
        "losses": losses(given),
        "aggregation": aggregation(given),
        "kl": kl,
        "corrections": corrections(given),
    }
    target = Path(__file__).with_name("verl_core_algos.json")
    target.write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
