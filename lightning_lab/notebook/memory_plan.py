"""Whether a run fits the GPUs that it asks for: its memory plan, by what the lab's policy and the trainer say.

What they do not say is taken at its least (one conversation of full length on each server), so that only a plan that
cannot fit is refused. A recipe says more: how many conversations a server holds, and how long they are. What learns on
CPUs is planned in this machine's memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightning_lab.cluster import WorkersMissingError
from lightning_lab.notebook.policies import LearnerSpec, PolicySpec
from lightning_lab.planning import (
    DoesNotFitError,
    EngineLayout,
    Layout,
    MemoryPlan,
    ModelShape,
    UnknownShapeError,
    plan_memory,
)
from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.training import TrainConfig

_GIB = 1 << 30
_CPU_TOKENS = 1024
"""The embedded learner reads at most so many at a time on a CPU."""
_CPU_RESERVE_GIB, _CPU_WORKSPACE_GIB = 1.0, 0.5
"""Assumed: interpreters with torch and the lab; a server's activations."""
_MEGATRON_BYTES = 2 + 4 + 12
"""Of a parameter: bfloat16 weights, float32 gradients, and in the distributed optimizer float32 masters and moments."""


class NoPlanError(ValueError):
    """This run's memory cannot be told before it starts; the message says why."""


def check_memory(policy: object, config: TrainConfig, gpus: int, gpu_gib: float | None) -> None:
    """Print the plan of a run on so many GPUs, none for one on CPUs.

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
    """Raises `NoPlanError`, `WorkersMissingError` for a run that works on more than ``gpus``, and
    `planning.DoesNotFitError` where what cannot be planned cannot fit either."""
    if not isinstance(policy, PolicySpec) or policy.kind not in ("torch", "vllm"):
        raise NoPlanError("only those of ll.Policy.torch and ll.Policy.vllm are known.")
    if str(_learners(policy).get("device", "cpu")) == "cpu":
        return plan_memory(_shape(policy.model), _on_cpus(policy, config, gpus))
    if gpu_gib is None:
        raise NoPlanError('nothing tells how much memory a GPU has. Name its kind: ll.Workers(gpus=8, kind="H100").')
    learner, engine = _learner(policy, config), _engine(policy, config)
    used = learner["gpus"] + (0 if learner["collocated"] else _served_gpus(policy, engine))
    if used > gpus:
        raise WorkersMissingError(
            f"This run's learner and servers work on {used} GPUs, and workers asks for {gpus}. Ask for {used}, or for "
            "fewer ranks and replicas; collocated=True of policy and learner has them share."
        )
    shape = _shape(policy.model)
    if policy.learner is not None and dict(policy.learner.options).get("strategy") == "megatron":
        raise _without_a_plan(shape, learner, gpu_gib)
    return plan_memory(shape, Layout(gpu_gib=gpu_gib, engine=engine, **learner))


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
    dtype = _name(_learners(policy).get("dtype"), "float32")
    return every | {
        "gpus": 1,
        "weights": dtype,
        "compute": dtype,
        "checkpointing": False,
        "collocated": policy.learner is None,
    }


def _verl(learner: LearnerSpec, policy: Mapping[str, Any], *, reference: bool) -> dict[str, Any]:
    settings = dict(learner.options)
    engine, model = settings.get("engine", {}), settings.get("model", {})
    rank = int(model.get("lora_rank", 0))
    return {
        "gpus": int(settings.get("ranks", 1)),
        "sequence_parallel": int(engine.get("ulysses_sequence_parallel_size", 1)),
        "offload": bool(engine.get("param_offload") and engine.get("optimizer_offload")),
        # verl's own default, but for CPUs
        "checkpointing": bool(model.get("enable_gradient_checkpointing", settings.get("device") == "cuda")),
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


def _learners(policy: PolicySpec) -> dict[str, Any]:
    """The options of who learns."""
    return dict(policy.options if policy.learner is None else policy.learner.options)


def _on_cpus(policy: PolicySpec, config: TrainConfig, gpus: int) -> Layout:
    """All ranks of the learner in one machine's memory; and the engine, unless it has GPUs or a machine of its own."""
    learner, engine = _learner(policy, config), _engine(policy, config)
    options = dict(policy.options)
    if options.get("url") or (gpus and _served_gpus(policy, engine)):
        engine = EngineLayout(shares_weights=True, workspace_gib=0.0, sequences=1, sequence_tokens=1, sleeps=False)
    elif policy.kind == "vllm":
        dtype = _name(options.get("dtype"), "float32")
        engine = replace(engine, dtype=dtype, kv_dtype=dtype, tensor_parallel=1, sleeps=False)
    engine = replace(engine, workspace_gib=min(engine.workspace_gib, _CPU_WORKSPACE_GIB))
    tokens = config.token_budget * learner["gpus"]
    if policy.learner is None or policy.learner.kind == "torch":
        tokens = min(tokens, _CPU_TOKENS)
    whole = {"gpus": 1, "sequence_parallel": 1, "collocated": True, "offload": False, "micro_batch_tokens": tokens}
    machine = {"gpu_gib": machine_gib(), "on_cpus": True, "reserved_gib": _CPU_RESERVE_GIB}
    return Layout(engine=engine, **{"compute": "float32", **learner, **whole, **machine})


def machine_gib() -> float:
    """This machine's memory."""
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB, 1)


def _without_a_plan(shape: ModelShape, learner: Mapping[str, Any], gpu_gib: float) -> NoPlanError:
    """Of Megatron, whose own sizes decide; raises `planning.DoesNotFitError` where even their best cannot fit."""
    trained = shape.adapters(learner["lora_rank"]) if learner["lora_rank"] else shape.parameters
    least = (2 * (shape.parameters - trained) + _MEGATRON_BYTES * trained) / learner["gpus"] / _GIB
    said = (
        f"Megatron splits a model by its own parallel sizes. Evenly over {learner['gpus']} GPUs, weights, gradients "
        f"and moments take {least:.1f} GiB of each one's {gpu_gib:g}"
    )
    if least > gpu_gib:
        raise DoesNotFitError(f"{said}: use more or larger GPUs, lora_rank, or a smaller model.")
    return NoPlanError(f"{said}; activations and logits come on top.")


def _name(dtype: object, default: str) -> str:
    """``torch.bfloat16`` or its name."""
    return default if dtype is None else str(dtype).removeprefix("torch.")
