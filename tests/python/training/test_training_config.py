"""Settings are checked when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_lab.records import Sampling
from lightning_lab.training import ConfigError, TrainConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps is 0; it must be a whole number of at least 1"),
        ({"n": 2.5}, "n is 2.5"),
        ({"groups": True}, "groups is True"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; it must be a positive, finite number"),
        ({"learning_rate": "1e-4"}, "learning_rate is '1e-4'"),
        ({"seed": -1}, "seed is -1"),
        ({"estimator": "GRPO"}, "no estimator 'GRPO'. Use one of: dr_grpo, grpo"),
        ({"normalizer": "mean"}, "no normalizer 'mean'"),
        (
            {"max_sample_tokens": 9, "token_budget": 8},
            r"max_sample_tokens is 9; it must be from 1 to token_budget \(8\)",
        ),
        ({"sampling": Sampling(temperature=0.0)}, "sampling is"),
        ({"sampling": Sampling(top_p=0.9)}, "top_p 1 and top_k 0"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"entropy_coef": float("inf")}, "entropy_coef is inf"),
        ({"kl_coef": float("nan")}, "kl_coef is nan"),
        ({"singleton": "one"}, "no singleton rule 'one'. Use one of: batch_mean, reward, zero"),
        ({"advantage_unit": "token"}, "no advantage unit 'token'. Use one of: rollout, sample"),
        ({"merge": "tree"}, "no merge rule 'tree'"),
        ({"call_kinds": ("judge",)}, "no call kind 'judge'"),
        (
            {"retries": {"agent_error": 1}},
            "no outcome to try again after 'agent_error'. Use one of: boot_timeout, evicted",
        ),
        ({"retries": {"lost": -1}}, r"retries\['lost'\] is -1"),
        ({"infrastructure_limit": 0.0}, "infrastructure_limit is 0.0; it must be a share above 0, at most 1"),
        ({"infrastructure_window": 0}, "infrastructure_window is 0"),
    ],
)
def test_a_setting_that_cannot_work_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainConfig(**{"steps": 1, **settings})


def test_settings_are_json_values() -> None:
    import json

    config = TrainConfig(steps=2, loss_options={"clip_high": 0.28})
    assert json.loads(json.dumps(config.settings()))["loss_options"] == {"clip_high": 0.28}
    assert config.sample_limit == config.token_budget


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "ppo"}, "no loss 'ppo'. Use one of: cispo, gspo"),
        ({"loss": "gspo", "loss_options": {"dual_clip": 3}}, "loss_options has dual_clip, which 'gspo' does not know"),
        ({"kl_estimator": "k4"}, "no kl_estimator 'k4'"),
        ({"corrections": {"tis": {}}}, "no correction 'tis'"),
        ({"corrections": {"geometric_mask": {"cap": 1}}}, "corrections has cap.*It takes: high, low"),
        ({"corrections": {"token_tis": {}}}, "old_logprobs='recomputed'"),
        ({"old_logprobs": "new"}, "no old_logprobs 'new'. Use one of: recomputed, rollout"),
    ],
)
def test_a_loss_that_cannot_work_is_named_before_the_first_rollout(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainConfig(**{"steps": 1, **settings}).check_loss()


def test_every_option_together_is_accepted() -> None:
    config = TrainConfig(
        steps=1, loss="cispo", old_logprobs="recomputed", kl_coef=0.01, kl_estimator="k2", call_kinds=("main",),
        corrections={"token_tis": {"cap": 3.0}, "geometric_mask": {}},
    )  # fmt: skip
    config.check_loss()
    assert config.learner_options()["corrections"] == {"token_tis": {"cap": 3.0}, "geometric_mask": {}}
