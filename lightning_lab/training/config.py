"""What a training run is asked to do. Checked when it is made, so that a typing error costs no rollout."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from lightning_lab.algorithms import ESTIMATORS, NORMALIZERS, SINGLETONS
from lightning_lab.controller.retries import MAY_RETRY, USUAL, Retries
from lightning_lab.records import PauseMode, Sampling
from lightning_lab.samples import CALL_KINDS, MERGES
from lightning_lab.training.window import Schedule, Window

ADVANTAGE_UNITS = ("rollout", "sample")
_COUNTS = ("steps", "n", "groups", "updates", "token_budget", "eval_n", "keep_checkpoints", "infrastructure_window")


class ConfigError(ValueError):
    """A setting cannot work; the message names it, its value and what would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Settings of `TrainingLoop`. Raises `ConfigError`."""

    steps: int
    n: int = 8
    """Rollouts per group."""
    groups: int = 4
    """Groups (tasks) per step: B_train."""
    schedule: Schedule = "sync"
    """``sync``: each step samples its groups from one version and updates when all are complete. ``collocated``: groups
    go on across updates; an update starts as soon as ``groups`` of them are complete (`training.window`)."""
    async_groups: int | None = None
    """Groups whose rollouts are in flight in the ``collocated`` schedule: B_async; None: twice ``groups``. Where one
    waits for its last rollouts only, the places of the others are another group's."""
    max_staleness: int | None = None
    """Most publishes between sampling a token and training on it: an update that would make an unfinished group older
    waits for that group. None: no bound. The ``sync`` schedule has none to bound."""
    pause: PauseMode = "wait"
    """Calls in flight when an update starts: ``wait`` lets them finish, for at most ``drain_s``; ``interrupt`` keeps
    the tokens that were sampled and goes on from exactly those after the publish."""
    learning_rate: float = 1e-5
    estimator: str = "grpo"
    """Advantages: a key of ``algorithms.ESTIMATORS``."""
    singleton: str = "zero"
    """Advantage of a rollout that is alone in its group: a name of ``algorithms.SINGLETONS``."""
    advantage_unit: str = "rollout"
    """What a group's statistics count. ``sample`` is for comparison only: a rollout that was cut into more samples then
    counts more often, which contract 4 rules out (`algorithms.sample_level_advantages`)."""
    merge: str = "forest"
    """How calls become samples: a key of ``samples.MERGES``."""
    call_kinds: tuple[str, ...] | None = None
    """Only calls of these classes train (``samples.CALL_KINDS``), the others are masked ``filtered``; None: all."""
    loss: str = "ppo_clip"
    """A key of ``algorithms.losses.LOSSES``."""
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the loss, e.g. ``{"clip_high": 0.28}``."""
    old_logprobs: str = "rollout"
    """What the loss's ratio divides by: ``rollout``, the sampler's log-probs, or ``recomputed`` by the learner."""
    corrections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Off-policy corrections: keys of ``algorithms.correction.CORRECTIONS`` with their options, e.g.
    ``{"token_tis": {"cap": 2.0}}``."""
    kl_coef: float = 0.0
    """Weight of the KL to the model as it was loaded; each token counts with its loss weight."""
    kl_estimator: str = "k3"
    """``k1``, ``k2`` or ``k3``: a key of ``algorithms.kl.KL_ESTIMATORS``."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus; each token counts with its loss weight."""
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    normalizer: str = "rollout_mean"
    """Token weights: a key of ``algorithms.NORMALIZERS``."""
    constant: float = 1024.0
    """The length that the normaliser ``constant`` divides by."""
    updates: int = 1
    """Optimiser updates per step: its rollouts are dealt, each whole, over so many mini-batches of like cost, and each
    update counts its own rollouts in the normaliser. The version grows once, after the last."""
    token_budget: int = 16_384
    """Most tokens in one micro-batch."""
    max_sample_tokens: int | None = None
    """Longer samples are cut after the last call that fits; None: the token budget."""
    sampling: Sampling = field(default_factory=Sampling)
    """What the training rollouts sample with, whatever the harness asks for. The learner scores tokens under the whole
    distribution at that temperature, so top_p and top_k must not cut it."""
    seed: int = 0
    """Order of tasks, and the permutation of ``shuffle_rewards``."""
    drain_s: float = 60.0
    """How long in-flight calls may finish before an update aborts them."""
    eval_every: int = 0
    """Steps between held-out evaluations, which also happen before the first and after the last step; 0: never."""
    eval_n: int = 1
    """Rollouts per held-out task."""
    checkpoint_every: int = 0
    """Steps between checkpoints; there is one at the end as well; 0: never."""
    keep_checkpoints: int = 2
    retries: Mapping[str, int] = field(default_factory=lambda: dict(USUAL))
    """Further attempts of a rollout, by the outcome of the one that failed (`controller.retries`); ``{}``: none. Only
    outcomes that say nothing about the agent are tried again."""
    retry_wait_s: float = 1.0
    """Before a second attempt; twice as long before each further one, up to a minute."""
    infrastructure_limit: float = 0.5
    """The run stops when more than this share of the last ``infrastructure_window`` rollouts ended, after their
    retries, for reasons that say nothing about the agent; 1.0: never."""
    infrastructure_window: int = 50
    shuffle_rewards: bool = False
    """A control experiment: the valid rewards of each step are permuted across its rollouts before advantages are
    computed. Everything else stays; what such a run still gains is not owed to the rewards. Stored rewards are the
    graders' own."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _require(_whole(getattr(self, name), 1), name, getattr(self, name), "a whole number of at least 1")
        for name in ("seed", "eval_every", "checkpoint_every"):
            _require(_whole(getattr(self, name), 0), name, getattr(self, name), "a whole number of at least 0")
        for name in ("learning_rate", "constant", "drain_s", "max_grad_norm", "retry_wait_s"):
            _require(_finite(getattr(self, name), above=0), name, getattr(self, name), "a positive, finite number")
        for name in ("entropy_coef", "kl_coef"):
            _require(_finite(getattr(self, name)), name, getattr(self, name), "a finite number")
        decays = _finite(self.weight_decay) and self.weight_decay >= 0
        _require(decays, "weight_decay", self.weight_decay, "a finite number of at least 0")
        if self.max_sample_tokens is not None:
            fits = _whole(self.max_sample_tokens, 1) and self.max_sample_tokens <= self.token_budget
            _require(fits, "max_sample_tokens", self.max_sample_tokens, f"from 1 to token_budget ({self.token_budget})")
        whole = self.sampling.temperature > 0 and self.sampling.top_p == 1.0 and self.sampling.top_k == 0
        _require(
            whole, "sampling", self.sampling, "with temperature above 0, top_p 1 and top_k 0: other ratios are wrong"
        )
        for name in ("async_groups", "max_staleness"):
            value = getattr(self, name)
            _require(value is None or _whole(value, 1), name, value, "a whole number of at least 1, or None")
        share = _finite(self.infrastructure_limit, above=0) and self.infrastructure_limit <= 1
        _require(share, "infrastructure_limit", self.infrastructure_limit, "a share above 0, at most 1")
        for outcome, times in self.retries.items():
            _require_known("outcome to try again after", outcome, MAY_RETRY)
            _require(_whole(times, 0), f"retries[{outcome!r}]", times, "a whole number of at least 0")
        _require_known("schedule", self.schedule, get_args(Schedule))
        _require_known("pause", self.pause, get_args(PauseMode))
        for kind in self.call_kinds or ():
            _require_known("call kind", kind, CALL_KINDS)
        _require_known("singleton rule", self.singleton, SINGLETONS)
        _require_known("merge rule", self.merge, MERGES)
        _require_known("advantage unit", self.advantage_unit, ADVANTAGE_UNITS)
        _require_known("estimator", self.estimator, ESTIMATORS)
        _require_known("normalizer", self.normalizer, NORMALIZERS)

    @property
    def sample_limit(self) -> int:
        """Most tokens in one sample."""
        return self.max_sample_tokens or self.token_budget

    def window(self) -> Window:
        """A new, empty one for these settings."""
        in_flight = self.async_groups or 2 * self.groups
        return Window(self.schedule, train=self.groups, in_flight=in_flight, n=self.n, max_staleness=self.max_staleness)

    def retry_rule(self) -> Retries:
        """What the controller is told of ``retries``."""
        return Retries(times=dict(self.retries), wait_s=self.retry_wait_s)

    def learner_options(self) -> dict[str, Any]:
        """What `Learner.update` gets as ``options``: the learner's own and the loss's."""
        return {
            "temperature": self.sampling.temperature,
            "old": self.old_logprobs,
            "corrections": dict(self.corrections),
            "kl_coef": self.kl_coef,
            "kl_estimator": self.kl_estimator,
            "entropy_coef": self.entropy_coef,
            "max_grad_norm": self.max_grad_norm,
            "weight_decay": self.weight_decay,
            **self.loss_options,
        }

    def settings(self) -> dict[str, Any]:
        """As JSON values, for the run's record."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values

    def check_loss(self) -> None:
        """Whether the loss, the corrections and their options exist. Apart from the other checks: it loads torch."""
        from lightning_lab.algorithms.correction import CORRECTIONS, REWEIGHTING
        from lightning_lab.algorithms.kl import KL_ESTIMATORS
        from lightning_lab.algorithms.losses import LOSSES

        _require_known("loss", self.loss, LOSSES)
        _require_known("kl_estimator", self.kl_estimator, KL_ESTIMATORS)
        _require_options("loss_options", self.loss, LOSSES[self.loss], self.loss_options)
        for name, options in self.corrections.items():
            _require_known("correction", name, CORRECTIONS)
            _require_options("corrections", name, CORRECTIONS[name], options)
        _require_known("old_logprobs", self.old_logprobs, ("rollout", "recomputed"))
        _require(
            self.updates == 1 or self.old_logprobs == "rollout",
            "updates",
            self.updates,
            "1 with old_logprobs='recomputed': they are those before each update, so that no ratio would ever differ",
        )
        twice = sorted(REWEIGHTING.intersection(self.corrections)) if self.old_logprobs == "rollout" else []
        _require(
            not twice,
            "corrections",
            twice,
            "used with old_logprobs='recomputed', or be a mask: the ratio to the sampler would count twice",
        )


def _options(loss: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(loss).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY}


def _require_options(where: str, name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    known = _options(function)
    unknown = sorted(set(options) - known)
    if unknown:
        raise ConfigError(
            f"{where} has {', '.join(unknown)}, which {name!r} does not know. "
            f"It takes: {', '.join(sorted(known)) or 'no options'}."
        )


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _finite(value: object, *, above: float = -math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > above


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}; it must be {expected}.")


def _require_known(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ConfigError(f"There is no {name} {value!r}. Use one of: {', '.join(sorted(known))}.")
