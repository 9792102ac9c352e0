"""Equal to verl 0.9.1 where it has the same estimator, loss or correction (tests/data/make_verl_fixtures.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_lab.algorithms import compute_advantages, token_weights
from lightning_lab.algorithms.correction import correction_factors
from lightning_lab.algorithms.kl import reference_kl
from lightning_lab.algorithms.losses import LOSSES
from lightning_lab.algorithms.metrics import effective_sample_size

VERL: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "verl_core_algos.json").read_text())
GIVEN = {name: torch.tensor(values, dtype=torch.float64) for name, values in VERL["given"].items()}
ROWS, LENGTH = GIVEN["mask"].shape
ROW_OF_TOKEN = torch.arange(ROWS).repeat_interleave(LENGTH)


def _weights(normalizer: str) -> Tensor:
    tokens = GIVEN["mask"].sum(1).long().numpy()
    per_row = torch.from_numpy(token_weights(normalizer, np.arange(ROWS), tokens, constant=1024.0))
    return per_row[ROW_OF_TOKEN] * GIVEN["mask"].flatten()


@pytest.mark.parametrize("name", sorted(VERL["advantages"]))
def test_advantages(name: str) -> None:
    rewards, groups = np.array(VERL["rewards"]), np.array(VERL["groups"])
    ours = compute_advantages(name, rewards, groups, np.ones(len(rewards), bool), singleton="reward")
    np.testing.assert_allclose(ours, VERL["advantages"][name], atol=1e-6)


@pytest.mark.parametrize("case", sorted(VERL["losses"]))
def test_losses_and_their_gradients(case: str) -> None:
    theirs = VERL["losses"][case]
    logprobs = GIVEN["logprobs"].flatten().clone().requires_grad_()
    loss, tokens = LOSSES[theirs["loss_name"]](
        logprobs,
        GIVEN["old_logprobs"].flatten(),
        GIVEN["advantages"].flatten(),
        _weights("token_mean"),
        ROW_OF_TOKEN,
        **theirs["options"],
    )
    loss.backward()
    assert logprobs.grad is not None
    assert loss.item() == pytest.approx(theirs["loss"], abs=1e-6)
    np.testing.assert_allclose(logprobs.grad, np.array(theirs["gradient"]).flatten(), atol=1e-6)
    assert (tokens["clipped"].sum() / GIVEN["mask"].sum()).item() == pytest.approx(theirs["clip_frac"], abs=1e-6)


@pytest.mark.parametrize("normalizer", sorted(VERL["aggregation"]))
def test_normalizers(normalizer: str) -> None:
    terms = (-GIVEN["advantages"] * GIVEN["logprobs"]).flatten()
    assert (terms * _weights(normalizer)).sum().item() == pytest.approx(VERL["aggregation"][normalizer], abs=1e-6)


@pytest.mark.parametrize("estimator", sorted(VERL["kl"]))
def test_kl(estimator: str) -> None:
    ours = reference_kl(GIVEN["logprobs"], GIVEN["old_logprobs"], torch.ones(ROWS, LENGTH), estimator)
    np.testing.assert_allclose(ours, VERL["kl"][estimator], atol=1e-6)


@pytest.mark.parametrize("name", sorted(set(VERL["corrections"]) - {"ess"}))
def test_corrections(name: str) -> None:
    theirs = VERL["corrections"][name]
    ours, _ = correction_factors(
        GIVEN["logprobs"].flatten(),
        GIVEN["old_logprobs"].flatten(),
        GIVEN["mask"].flatten(),
        ROW_OF_TOKEN,
        {name: theirs["options"]},
    )
    np.testing.assert_allclose(ours, np.array(theirs["factors"]).flatten(), atol=1e-6)


def test_effective_sample_size() -> None:
    ratio = torch.exp(GIVEN["logprobs"] - GIVEN["old_logprobs"])[GIVEN["mask"] > 0].numpy()
    assert effective_sample_size(ratio) == pytest.approx(VERL["corrections"]["ess"], abs=1e-6)
