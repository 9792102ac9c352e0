"""verl's training workers in Ray compute what the embedded learner computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines_verl_rows import make_rows

from lightning_lab.policy.base import LossRow, UpdateResult
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.policy.torch.checkpoint import load_weights
from lightning_lab.policy.verl import VerlLearner
from lightning_lab.policy.verl.errors import LearnerLostError

MODEL = "quickstart"
PLAIN = {"optimizer": "SGD"}
"""With learning rate 1, what a step takes from the weights is the gradient itself."""

pytestmark = pytest.mark.timeout(600)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo_clip", {"temperature": 0.8}),
    "gspo": ("gspo", {"clip_low": 0.2, "clip_high": 0.2}),
    "corrected": (
        "policy_gradient",
        {
            "old": "recomputed",
            "corrections": {"token_tis": {"cap": 2.0}, "sequence_mask": {"low": 1e-3, "high": 1e3}},
            "kl_coef": 0.05,
            "entropy_coef": 0.01,
        },
    ),
}


@pytest.fixture(scope="module")
def embedded() -> Iterator[TorchPolicy]:
    policy = TorchPolicy(MODEL, train_threads=1)
    policy.start()
    yield policy
    policy.close()


def embedded_gradient(
    policy: TorchPolicy, rows: Sequence[LossRow], loss: str, options: dict[str, Any]
) -> tuple[dict[str, torch.Tensor], UpdateResult]:
    seen: dict[str, torch.Tensor] = {}

    def keep(*_: object) -> None:
        seen.update((name, value.grad.clone()) for name, value in policy._model.named_parameters())

    handle = policy._learner.optimizer.register_step_pre_hook(keep)
    result = policy.update([rows], loss=loss, options={**options, "max_grad_norm": 1e9}, learning_rate=0.0)
    handle.remove()
    return seen, result


def exported(learner: VerlLearner, place: Path) -> dict[str, torch.Tensor]:
    learner.export(place)
    return load_weights(place)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_gradient_is_that_of_the_embedded_learner(embedded: TorchPolicy, tmp_path: Path, ranks: int) -> None:
    rows = make_rows()
    learner = VerlLearner(MODEL, ranks=ranks, optimizer=PLAIN)
    checkpoint = tmp_path / "begun"
    try:
        learner.start()
        learner.save(checkpoint)
        before = exported(learner, tmp_path / "0")
        for number, (loss, options) in enumerate(CASES.values(), start=1):
            expected, told = embedded_gradient(embedded, rows, loss, options)
            learner.load(checkpoint)
            batches = [rows[:3], rows[3:5], rows[5:]]
            asked = {**options, "max_grad_norm": 1e9}
            result = learner.update(batches, loss=loss, options=asked, learning_rate=1.0)
            after = exported(learner, tmp_path / str(number))
            for name, gradient in expected.items():
                torch.testing.assert_close(before[name] - after[name], gradient, atol=1e-5, rtol=1e-4, msg=name)
            for name, value in told.metrics.items():
                if name != "learning_rate":
                    assert result.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
            for one, other in zip(result.tokens, told.tokens, strict=True):
                for column in ("entropy", "logprobs", "ratio", "clipped", "loss"):
                    np.testing.assert_allclose(getattr(one, column), getattr(other, column), atol=1e-4, rtol=1e-3)
            assert result.rollout_weights == pytest.approx(dict(told.rollout_weights), abs=1e-5)
    finally:
        learner.close()


def test_a_rank_that_ray_ends_for_want_of_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own memory monitor does it, on a machine that it takes to be full."""
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.001")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    monkeypatch.setenv("RAY_task_oom_retries", "0")
    learner = VerlLearner(MODEL)
    with pytest.raises(LearnerLostError, match=r"of the learner (could not start|died) \(.*memory"):
        learner.start()
