"""The quickstart on verl reaches the reward that it reaches on torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines_server import sample_of

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.policy.base import LossRow, UpdateResult
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.torch.taught import TaughtTorchPolicy
from lightning_lab.policy.verl import VerlLearner
from lightning_lab.training.evaluation import EvalResult

MODEL, SEED = "quickstart", 2
STEPS, HELD_OUT = 8, 128
GAIN = 0.3
"""Rewards are 0 or 1, so a mean of 128 has a standard error of at most sqrt(0.25 / 128) = 0.044, and the difference of
two such means one of at most 0.0625: a policy that stands still gains 0.3, 4.8 of them, once in a million times. The
quickstart gained 0.50 to 0.61 in a handful of runs on either backend; with permuted rewards (``shuffle_rewards=True``)
it lost 0.28 in the one run that was made.
"""
SAME = 0.001
"""Reward that the two learners' policies may differ in."""

pytestmark = pytest.mark.timeout(900)


class Remembered:
    """A learner, and what it was asked and said in each update."""

    def __init__(self, learner: VerlLearner) -> None:
        self._learner = learner
        self.updates: list[tuple[Sequence[Sequence[LossRow]], Mapping[str, Any], UpdateResult]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def close(self) -> None:
        """Others use it too."""

    def update(self, micro_batches: Sequence[Sequence[LossRow]], **asked: Any) -> UpdateResult:
        result = self._learner.update(micro_batches, **asked)
        self.updates.append((micro_batches, asked, result))
        return result


def of_the_notebook() -> dict[str, Any]:
    """Its agent, tasks, grader and settings, as ``benchmarks/quickstart.py`` takes them."""
    where = Path(__file__).parents[2] / "benchmarks" / "quickstart.py"
    specification = importlib.util.spec_from_file_location("quickstart_benchmark", where)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    names: dict[str, Any] = module.notebook_names()
    return names


def reweighted(lab: Lab, evaluated: EvalResult, learner: DetachedTorchLearner) -> float:
    """The mean reward of the learner's policy, by the rollouts of another one: each weighs as many times as the learner
    would sample it more often, which is the unbiased estimate."""
    weighed = []
    for rollout in evaluated.rollouts:
        samples = [sample_of(call) for call in lab.store.calls(rollout.id)]
        found = learner.logprobs(samples, temperature=1.0)
        more = sum(
            float((one - sample.logprobs)[sample.mask].sum()) for one, sample in zip(found, samples, strict=True)
        )
        weighed.append(rollout.reward * np.exp(more))
    return float(np.mean(weighed))


async def test_the_quickstart_reaches_on_verl_the_reward_that_it_reaches_on_torch(
    ranks: VerlLearner, tmp_path: Path
) -> None:
    """The notebook trains on two ranks; the embedded learner is then given the same experience, update by update.

    Where both say the same of the tokens of every update, a run on torch that draws the same rollouts is this run, step
    by step; where their last policies say the same of the held-out rollouts, they earn the same reward. Trainings that
    draw rollouts of their own differ by chance, by up to 0.1 in those that were run, so comparing theirs shows less.
    """
    names = of_the_notebook()
    verl = Remembered(ranks)
    lab = ll.Lab(policy=TaughtTorchPolicy(MODEL, learner=verl, seed=SEED), runs=tmp_path / "runs")
    ranks.save(tmp_path / "begun")
    try:
        kept = {"n": names["N"], "groups": names["GROUPS"], "learning_rate": names["LEARNING_RATE"], "seed": SEED}
        trainer = ll.Trainer(lab, names["solver"], names["train"], names["exact"], **kept)
        held_out = names["EVALUATED"][:HELD_OUT]
        before = await trainer.evaluate(held_out)
        run = trainer.fit(steps=STEPS)
        await run
        assert (run.state, run.record.reason) == ("finished", "")
        after = await trainer.evaluate(held_out)
        assert before.n == after.n == HELD_OUT
        assert after.mean - before.mean > GAIN, run.steps()["reward"].tolist()

        torch = DetachedTorchLearner(MODEL, threads=1)
        for step, (micro_batches, asked, result) in enumerate(verl.updates):
            told = torch.update(micro_batches, **asked)
            for one, other in zip(result.tokens, told.tokens, strict=True):
                np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-3, err_msg=f"step {step}")
        assert reweighted(lab, after, torch) == pytest.approx(after.mean, abs=SAME)
    finally:
        lab.close()
        ranks.load(tmp_path / "begun")
