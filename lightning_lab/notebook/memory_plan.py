"""Whether a run fits the GPUs that it asks for: its memory plan, by what the lab's policy and the trainer say.

What they do not say is taken at its least (one conversation of full length on each server), so that only a plan that
cannot fit is refused. A recipe says more: how many conversations a server holds, and how long they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lightning_lab.cluster import WorkersMissingError
from lightning_lab.notebook.policies import LearnerSpec, PolicySpec
from lightning_lab.planning import EngineLayout, Layout, MemoryPlan, ModelShape, UnknownShapeError, plan_memory
from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.training import TrainConfig


class NoPlanError(ValueError):
    """This run's memory cannot be told before it starts; the message says why."""


def check_memory(policy: object, config: TrainConfig, gpus: int, gpu_gib: float | None) -> None:
    """Print the plan of a run on so many GPUs.

    Raises `planning.DoesNotFitError` when it cannot fit, and `WorkersMissingError` when it works on more GPUs.
    """
    try:
        plan = plan_run(policy, config, gpus, gpu_gib)
    except NoPlanError as error:
        print(f"No memory plan: {error}")
        return
    print(plan)
    plan.check()


def plan_run(policy: object, config: TrainConfig, gpus: int, gpu_gib: float | None) -> MemoryPlan:
    """Raises `NoPlanError`, and `WorkersMissingError` for a run that works on more than ``gpus``."""
    if not isinstance(policy, PolicySpec) or policy.kind not in ("torch", "vllm"):
        raise NoPlanError("only those of ll.Policy.torch and ll.Policy.vllm are known.")
    if gpu_gib is None:
        raise NoPlanError('nothing tells how much memory a GPU has. Name its kind: ll.Workers(gpus=8, kind="H100").')
    learner, engine = _learner(policy, config), _engine(policy, config)
    used = learner["gpus"] + (0 if learner["collocated"] else _served_gpus(policy, engine))
    if used > gpus:
        raise WorkersMissingError(
            f"This run's learner and servers work on {used} GPUs, and workers asks for {gpus}. Ask for {used}, or for "
            "fewer ranks and replicas; collocated=True of policy and learner has them share."
        )
    return plan_memory(_shape(policy.model), Layout(gpu_gib=gpu_gib, engine=engine, **learner))


def _shape(model: str) -> ModelShape:
    try:
        return ModelShape.from_config(json.loads((resolve_model(model) / "config.json").read_text(encoding="utf-8")))
    except (PolicyError, UnknownShapeError, OSError) as error:
        raise NoPlanError(str(error)) from error


def _learner(policy: PolicySpec, config: TrainConfig) -> dict[str, Any]:
    """The learner's part of a `Layout`."""
    every = {"micro_batch_tokens": config.token_budget, "reference": config.kl_coef > 0}
    if policy.learner is not None and policy.learner.kind == "verl":
        return every | _verl(policy.learner, dict(policy.options), reference=config.kl_coef > 0)
    embedded = policy.learner is None
    options = dict(policy.options if policy.learner is None else policy.learner.options)
    _require_gpu(options, 'device="cuda"')
    dtype = _name(options.get("dtype"), "float32")
    return every | {
        "gpus": 1,
        "weights": dtype,
        "compute": dtype,
        "checkpointing": False,
        "collocated": embedded,
    }


def _verl(learner: LearnerSpec, policy: Mapping[str, Any], *, reference: bool) -> dict[str, Any]:
    settings = dict(learner.options)
    if settings.get("strategy", "fsdp2") != "fsdp2":
        raise NoPlanError(f"how {settings['strategy']} splits a model is not known here.")
    _require_gpu(settings, 'll.Learner.verl(…, device="cuda")')
    engine, model = settings.get("engine", {}), settings.get("model", {})
    rank = int(model.get("lora_rank", 0))
    return {
        "gpus": int(settings.get("ranks", 1)),
        "sequence_parallel": int(engine.get("ulysses_sequence_parallel_size", 1)),
        "offload": bool(engine.get("param_offload") and engine.get("optimizer_offload")),
        "checkpointing": bool(model.get("enable_gradient_checkpointing", True)),  # verl's own default
        "lora_rank": rank,
        "reference": reference and not rank,  # with LoRA it is the model without its adapter
        "collocated": bool(policy.get("collocated")),
    }


def _engine(policy: PolicySpec, config: TrainConfig) -> EngineLayout:
    options = dict(policy.options)
    least: dict[str, Any] = {"sequences": 1, "sequence_tokens": config.sample_limit}
    if policy.kind == "torch":
        learns_in = _name(options.get("dtype"), "float32")
        dtype = _name(options.get("sampling_dtype"), learns_in)
        shares = policy.learner is None and dtype == learns_in
        return EngineLayout(dtype=dtype, kv_dtype=dtype, shares_weights=shares, sleeps=False, **least)
    if options.get("url"):  # on GPUs that somebody else counts
        return EngineLayout(shares_weights=True, workspace_gib=0.0, sequences=1, sequence_tokens=1)
    dtype = _name(options.get("dtype"), "bfloat16")
    return EngineLayout(tensor_parallel=_tensor_parallel(policy), dtype=dtype, **least)


def _tensor_parallel(policy: PolicySpec) -> int:
    options = dict(policy.options)
    given = dict(options.get("options") or {}).get("tensor_parallel_size")
    ranks = dict(policy.learner.options).get("ranks", 1) if policy.learner else 1
    shared = max(1, ranks // options.get("replicas", 1)) if options.get("collocated") else 1
    return int(given or shared)


def _served_gpus(policy: PolicySpec, engine: EngineLayout) -> int:
    """GPUs of the lab's own servers."""
    options = dict(policy.options)
    if policy.kind == "torch":
        return int(options.get("device", "cpu") != "cpu")
    return 0 if options.get("url") else int(options.get("replicas", 1)) * engine.tensor_parallel


def _require_gpu(options: Mapping[str, Any], how: str) -> None:
    if str(options.get("device", "cpu")) == "cpu":
        raise NoPlanError(f"this run learns on CPUs. What has it learn on a GPU is {how}.")


def _name(dtype: object, default: str) -> str:
    """``torch.bfloat16`` or its name."""
    return default if dtype is None else str(dtype).removeprefix("torch.")
