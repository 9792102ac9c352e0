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
