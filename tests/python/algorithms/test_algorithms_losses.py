"""The losses, and contract 5 on gradients of a real (tiny) model in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_lab.algorithms import CUT_DEPENDENT, NORMALIZERS, token_weights
from lightning_lab.algorithms.correction import correction_factors
from lightning_lab.algorithms.losses import LOSSES, cispo, gspo, policy_gradient, ppo_clip
from lightning_lab.planning import plan

VOCABULARY = 11
Row = tuple[Tensor, Tensor, Tensor, Tensor]  # ids, mask, old log-probs, which call (counted through all rollouts)
CORRECTION = {"token_tis": {"cap": 1.1}, "geometric_mask": {"low": 0.75, "high": 1.33}}


def _tensors(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_ppo_clip_known_values() -> None:
    logprobs = torch.log(_tensors(1.5, 1.5, 0.5, 0.5, 1.1)).requires_grad_()
    advantages = _tensors(1.0, -1.0, 1.0, -1.0, 2.0)
    loss, tokens = ppo_clip(
        logprobs, torch.zeros(5, dtype=torch.float64), advantages, torch.ones(5, dtype=torch.float64)
    )
    np.testing.assert_allclose(tokens["loss"], [-1.2, 1.5, -0.5, 0.8, -2.2])
    assert tokens["clipped"].tolist() == [1, 0, 0, 1, 0]
    np.testing.assert_allclose(tokens["ratio"], [1.5, 1.5, 0.5, 0.5, 1.1])
    loss.backward()
    assert logprobs.grad is not None
    np.testing.assert_allclose(logprobs.grad, [0, 1.5, -0.5, 0, -2.2], atol=1e-12)


def test_the_upper_clip_can_be_higher() -> None:
    logprobs, zero = torch.log(_tensors(1.25)), _tensors(0.0)
    assert ppo_clip(logprobs, zero, _tensors(1.0), _tensors(1.0), clip_high=0.28)[1]["clipped"].item() == 0
    assert ppo_clip(logprobs, zero, _tensors(1.0), _tensors(1.0), clip_high=0.2)[1]["clipped"].item() == 1


def test_policy_gradient_known_values() -> None:
    logprobs = _tensors(-1.0, -2.0).requires_grad_()
    loss, tokens = policy_gradient(logprobs, _tensors(-1.0, -2.0), _tensors(2.0, -1.0), _tensors(0.5, 0.25))
    assert loss.item() == pytest.approx(2.0 * 0.5 - 2.0 * 0.25)
    loss.backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-1.0, 0.25]
    assert tokens["ratio"].tolist() == [1.0, 1.0]


def test_the_dual_clip_bounds_what_a_bad_token_can_cost() -> None:
    logprobs = torch.log(_tensors(9.0, 2.0, 9.0)).requires_grad_()
    loss, tokens = ppo_clip(logprobs, torch.zeros(3).double(), _tensors(-1, -1, 1), torch.ones(3).double(), dual_clip=3)
    np.testing.assert_allclose(tokens["loss"], [3.0, 2.0, -1.2])
    assert tokens["clipped"].tolist() == [1, 0, 1]
    loss.backward()
    assert logprobs.grad is not None
    np.testing.assert_allclose(logprobs.grad, [0.0, 2.0, 0.0], atol=1e-12)
    with pytest.raises(ValueError, match="above 1"):
        ppo_clip(logprobs, logprobs, logprobs, logprobs, dual_clip=1.0)


def test_gspo_has_one_ratio_per_call() -> None:
    logprobs = _tensors(0.3, 0.1, -0.5, 7.0).requires_grad_()
    old, weights = torch.zeros(4).double(), _tensors(1.0, 1.0, 1.0, 0.0)
    loss, tokens = gspo(
        logprobs, old, _tensors(1, 1, 1, 1), weights, torch.tensor([4, 4, 0, 4]), clip_low=0.1, clip_high=1
    )
    s = np.exp(0.2)
    np.testing.assert_allclose(tokens["loss"], [-s, -s, -np.exp(-0.5), 0.0])
    loss.backward()
    assert logprobs.grad is not None
    np.testing.assert_allclose(logprobs.grad, [-s, -s, -np.exp(-0.5), 0.0])


def test_cispo_clips_the_weight_and_keeps_the_gradient() -> None:
    logprobs = torch.log(_tensors(9.0, 0.1)).requires_grad_()
    loss, tokens = cispo(logprobs, torch.zeros(2).double(), _tensors(1, 1), _tensors(1, 1), clip_high=1.0)
    assert tokens["clipped"].tolist() == [1, 0]
    loss.backward()
    assert logprobs.grad is not None
    np.testing.assert_allclose(logprobs.grad, [-2.0, -0.1])


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_prime_rl_1961_masked_tokens_add_exactly_nothing(name: str) -> None:
    logprobs = _tensors(-1.0, float("-inf"), -3.0).requires_grad_()
    old = _tensors(0.0, float("nan"), float("inf"))
    loss, tokens = LOSSES[name](logprobs, old, _tensors(1.0, 1.0, 1.0), _tensors(0.0, 0.0, 0.0))
    loss.backward()
    assert loss.item() == 0.0
    assert logprobs.grad is not None and logprobs.grad.tolist() == [0.0, 0.0, 0.0]
    assert all(torch.isfinite(values).all() for values in tokens.values())


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_no_tokens_no_loss(name: str) -> None:
    empty = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    loss, _ = LOSSES[name](empty, empty.detach(), empty.detach(), empty.detach())
    loss.backward()
    assert loss.item() == 0.0


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_far_off_ratio_stays_finite_and_unknown_options_are_refused(name: str) -> None:
    logprobs = _tensors(-1.0).requires_grad_()
    loss, _ = LOSSES[name](logprobs, _tensors(-5000.0), _tensors(-1.0), _tensors(1.0))
    loss.backward()
    assert torch.isfinite(loss) and logprobs.grad is not None and torch.isfinite(logprobs.grad).all()
    with pytest.raises(TypeError):
        LOSSES[name](logprobs, logprobs, logprobs, logprobs, cliprange=0.2)


class TinyModel(nn.Module):
    """A recurrent language model: the context matters, so rows are cut as real samples are, context kept."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 6)
        self.mix = nn.GRU(6, 8, batch_first=True)
        self.head = nn.Linear(8, VOCABULARY)

    def logprobs(self, ids: Tensor) -> Tensor:
        """Of each id given those before it; position 0 has none and gets 0. Shape [n]."""
        hidden, _ = self.mix(self.embed(ids[None]))
        table = torch.log_softmax(self.head(hidden)[0, :-1], -1)
        return torch.cat([table.new_zeros(1), table.gather(1, ids[1:, None])[:, 0]])


def _rollout(generator: torch.Generator, calls: int) -> tuple[list[Row], Row]:
    """The same calls as one row per call and as one merged row."""
    ids, mask = torch.randint(VOCABULARY, (2,), generator=generator), torch.zeros(2, dtype=torch.bool)
    old, call = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.long)
    rows: list[Row] = []
    for index in range(calls):
        size = int(torch.randint(1, 5, (1,), generator=generator))
        reply = torch.randint(VOCABULARY, (size,), generator=generator)
        logprobs = -2.4 + 0.3 * torch.randn(size, generator=generator, dtype=torch.float64)
        ids, mask = torch.cat([ids, reply]), torch.cat([mask, torch.ones(size, dtype=torch.bool)])
        old, call = torch.cat([old, logprobs]), torch.cat([call, torch.full((size,), index)])
        alone = torch.zeros_like(mask)
        alone[-size:] = True
        rows.append((ids, alone, torch.where(alone, old, torch.zeros_like(old)), call))
        tool = torch.randint(VOCABULARY, (2,), generator=generator)
        ids, mask = torch.cat([ids, tool]), torch.cat([mask, torch.zeros(2, dtype=torch.bool)])
        old = torch.cat([old, torch.zeros(2, dtype=torch.float64)])
        call = torch.cat([call, torch.zeros(2, dtype=torch.long)])
    return rows, (ids, mask, old, call)


def _gradient(
    model: TinyModel,
    rollouts: list[list[Row]],
    advantages: list[float],
    loss: str,
    normalizer: str,
    budget: int,
    ranks: int = 1,
) -> Tensor:
    """The ranks' micro-batches one after the other: their gradients are summed."""
    owner = [i for i, rows in enumerate(rollouts) for _ in rows]
    rows = [row for rows in rollouts for row in rows]
    tokens = np.array([int(row[1].sum()) for row in rows])
    weights = token_weights(normalizer, np.array(owner), tokens)
    model.zero_grad()
    made = plan([len(row[0]) for row in rows], budget, ranks)
    for micro_batch in (rows for rank in range(ranks) for rows in made.of_rank(rank) if rows):
        new = torch.cat([model.logprobs(rows[i][0]) for i in micro_batch])
        old = torch.cat([rows[i][2] for i in micro_batch])
        per_token = torch.cat([weights[i] * rows[i][1].double() for i in micro_batch])
        advantage = torch.cat([torch.full((len(rows[i][0]),), advantages[owner[i]]).double() for i in micro_batch])
        # a call is told from the others by its rollout and its number in it
        sequences = torch.cat([rows[i][3] + 100 * owner[i] for i in micro_batch])
        factors, _ = correction_factors(new, old, per_token, sequences, CORRECTION)
        LOSSES[loss](new, old, advantage, per_token, sequences, factors)[0].backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("normalizer", sorted(NORMALIZERS))
@given(seed=st.integers(0, 10_000), calls=st.lists(st.integers(1, 4), min_size=1, max_size=4))
@settings(max_examples=5, deadline=None)
def test_the_gradient_does_not_know_how_the_batch_was_cut(
    loss: str, normalizer: str, seed: int, calls: list[int]
) -> None:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = TinyModel().double()
    made = [_rollout(generator, count) for count in calls]
    split, merged = [rows for rows, _ in made], [[row] for _, row in made]
    advantages = torch.randn(len(calls), generator=generator).tolist()
    longest = max(len(row[0]) for rows in merged for row in rows)

    def gradient(rollouts: list[list[Row]], budget: int) -> Tensor:
        return _gradient(model, rollouts, advantages, loss, normalizer, budget)

    whole = gradient(merged, 10_000)
    assert torch.isfinite(whole).all()
    assume(whole.abs().max() > 0)  # every token may happen to be clipped
    _close(gradient(merged, longest), whole)
    _close(gradient(split, longest), gradient(split, 10_000))
    _close(_gradient(model, split, advantages, loss, normalizer, longest, ranks=3), gradient(split, 10_000))
    if normalizer not in CUT_DEPENDENT:
        _close(gradient(split, longest), whole)


def _close(gradient: Tensor, expected: Tensor) -> None:
    assert ((gradient - expected).norm() / expected.norm()).item() < 1e-5
