"""``ll.Policy``: descriptions of policies. Nothing heavy is imported before a lab starts one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_lab.notebook.errors import MissingExtraError
from lightning_lab.policy import base


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSpec:
    """Who learns for a policy whose engine is another program. Compared by value."""

    kind: str
    options: tuple[tuple[str, Any], ...] = ()

    def build(self, model: str) -> base.DetachedLearner:
        """Make the learner of ``model``, not yet started. Raises `MissingExtraError` or `base.PolicyError`."""
        require_extra("train", ("torch", "transformers", "safetensors"), f"Learner.{self.kind}")
        if self.kind == "verl":
            from lightning_lab.policy.verl import VerlLearner

            return VerlLearner(model, **dict(self.options))
        from lightning_lab.policy.torch.detached import DetachedTorchLearner

        return DetachedTorchLearner(model, **dict(self.options))

    def describe(self) -> Mapping[str, Any]:
        return {"kind": self.kind, "options": dict(self.options)}


class Learner:
    """The learners that a policy with another program's engine can have: ``ll.Learner.torch()``."""

    @staticmethod
    def torch(**options: Any) -> LearnerSpec:
        """In this process. ``options`` go to `lightning_lab.policy.torch.detached.DetachedTorchLearner`."""
        return LearnerSpec(kind="torch", options=tuple(sorted(options.items())))

    @staticmethod
    def verl(ranks: int = 1, **settings: Any) -> LearnerSpec:
        """verl's training workers in Ray, ``ranks`` of them, on this machine or on a cluster.

        ``settings`` are those of `lightning_lab.policy.verl.VerlSettings` (``device``, ``nodes``, ``address``, and
        verl's own in ``engine``, ``model``, ``optimizer``, ``checkpoint``). They run in the environment that
        ``lightning-lab engines install verl`` makes.
        """
        return LearnerSpec(kind="verl", options=tuple(sorted({"ranks": ranks, **settings}.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """Which policy a lab starts. Compared by value, so that a re-run cell finds its open lab."""

    kind: str
    model: str
    seed: int = 0
    chat_template: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    learner: LearnerSpec | None = None
    api_key: str | None = field(default=None, repr=False)
    """Never shown and never stored."""

    def build(self) -> base.Policy:
        """Make the policy, not yet started. Raises `MissingExtraError` or `base.PolicyError`."""
        if self.kind == "openai":
            from lightning_lab.policy.openai import OpenAIPolicy

            return OpenAIPolicy(model=self.model, api_key=self.api_key, **dict(self.options))
        if self.kind == "vllm":
            return self._build_vllm()
        require_extra("train", ("torch", "transformers", "safetensors"), f"Policy.{self.kind}")
        options = {"seed": self.seed, "chat_template": self.chat_template, **dict(self.options)}
        if self.learner is not None:
            from lightning_lab.policy.torch.taught import TaughtTorchPolicy

            return TaughtTorchPolicy(self.model, learner=self.learner.build(self.model), **options)
        from lightning_lab.policy.torch import TorchPolicy

        return TorchPolicy(self.model, **options)

    def describe(self) -> Mapping[str, Any]:
        """JSON-ready settings for the manifest."""
        described = {"kind": self.kind, "model": self.model, "seed": self.seed, "options": dict(self.options)}
        return described if self.learner is None else {**described, "learner": self.learner.describe()}

    def _build_vllm(self) -> base.Policy:
        require_extra("train", ("jinja2", "tokenizers"), "Policy.vllm")
        from lightning_lab.policy.vllm import VllmPolicy

        return VllmPolicy(
            self.model,
            learner=None if self.learner is None else self.learner.build(self.model),
            seed=self.seed,
            chat_template=self.chat_template,
            api_key=self.api_key or "",
            **dict(self.options),
        )

    def __str__(self) -> str:
        return f"{self.kind}:{self.model}"


class Policy:
    """The policies a lab can start: ``ll.Policy.torch("quickstart")``."""

    @staticmethod
    def torch(
        model: str | Path,
        *,
        learner: LearnerSpec | None = None,
        seed: int = 0,
        chat_template: str | None = None,
        **options: Any,
    ) -> PolicySpec:
        """A Hugging Face causal LM in this process: it generates and learns on the same weights.

        ``model`` is ``"quickstart"``, ``"smollm2"`` or a model directory. ``learner``: who learns instead, elsewhere
        (``ll.Learner.verl()``). ``chat_template`` replaces the tokenizer's own. ``options`` go to
        `lightning_lab.policy.torch.TorchPolicy` (``device``, ``dtype``, ``max_batch``). Nothing is loaded before the
        lab starts.
        """
        return PolicySpec(
            kind="torch",
            model=str(model),
            seed=seed,
            chat_template=chat_template,
            options=tuple(sorted(options.items())),
            learner=learner,
        )

    @staticmethod
    def vllm(
        model: str | Path,
        *,
        learner: LearnerSpec | None = Learner.torch(),  # noqa: B008 - a description, never changed
        url: str | Sequence[str] = (),
        api_key: str | None = None,
        seed: int = 0,
        chat_template: str | None = None,
        **options: Any,
    ) -> PolicySpec:
        """vLLM servers answer, and ``learner`` learns beside them; with ``learner=None`` nobody does.

        The servers start with the lab, in the environment that ``lightning-lab engines install vllm`` makes; or ``url``
        names some that run already. ``model`` is as for `torch`. ``options`` go to
        `lightning_lab.policy.vllm.VllmPolicy` (``replicas``, ``tool_parser``, ``context_length``, ``dtype``).
        """
        where = (url,) if isinstance(url, str) else tuple(url)
        return PolicySpec(
            kind="vllm",
            model=str(model),
            seed=seed,
            chat_template=chat_template,
            options=tuple(sorted({**options, **({"url": where} if where else {})}.items())),
            learner=learner,
            api_key=api_key,
        )

    @staticmethod
    def openai(base_url: str, model: str, *, api_key: str | None = None) -> PolicySpec:
        """Any server that speaks Chat Completions (vLLM, SGLang, a hosted model …): it answers, and does not learn.

        ``base_url`` usually ends in ``/v1``; ``api_key`` defaults to ``OPENAI_API_KEY`` of the kernel's environment.
        Calls are exact where the server tells token ids (vLLM); elsewhere they are recorded without.
        """
        return PolicySpec(kind="openai", model=model, options=(("base_url", base_url),), api_key=api_key)


def require_extra(extra: str, packages: Sequence[str], what: str) -> None:
    """Raise `MissingExtraError` with the command that helps if one of ``packages`` cannot be imported."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f"{what} needs {', '.join(missing)}, which {verb} not installed here. "
            f'Run: pip install "lightning-lab[{extra}]"'
        )
