"""Workers of a run: its memory plan is shown before it starts, and one that cannot fit is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from notebook_standin import StandInPolicy, asker, says_yes, tasks

import lightning_lab as ll
from lightning_lab.cluster import Workers, WorkersMissingError
from lightning_lab.notebook import Lab, memory_plan
from lightning_lab.notebook.memory_plan import NoPlanError, plan_run
from lightning_lab.notebook.policies import PolicySpec
from lightning_lab.planning import DoesNotFitError
from lightning_lab.planning.memory import GIB
from lightning_lab.training import TrainConfig

# Qwen3-8B's.
SIZES = {
    **{"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
}
A100S = {"CPU": 96.0, "GPU": 8.0, "accelerator_type:A100": 1.0, "accelerator_type:A100-80G": 1.0}


class Cluster:
    """Eight A100s, and nothing that could be asked of them."""

    address = "http://head:8265"

    def nodes(self) -> list[dict[str, float]]:
        return [A100S]


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SIZES))
    return str(folder)


def verl(ranks: int = 8, **settings: Any) -> Any:
    return ll.Learner.verl(ranks, device="cuda", **settings)


def collocated(model: str, **engine: Any) -> PolicySpec:
    return ll.Policy.vllm(model, replicas=8, collocated=True, learner=verl(collocated=True, engine=engine))


def test_a_collocated_plan_by_what_policy_and_trainer_say(model: str) -> None:
    config = TrainConfig(steps=1, token_budget=16_384, kl_coef=0.1)
    plan = plan_run(collocated(model), config, 8, 79.0)
    layout = plan.layout
    assert (layout.gpus, layout.gpu_gib, layout.micro_batch_tokens) == (8, 79.0, 16_384)
    assert layout.collocated and layout.checkpointing and layout.reference and not layout.offload
    assert (layout.engine.tensor_parallel, layout.engine.dtype) == (1, "bfloat16")
    assert plan.fits and plan.shape.parameters > 8e9
    less = plan_run(collocated(model, ulysses_sequence_parallel_size=2, param_offload=True), config, 8, 79.0)
    assert less.layout.sequence_parallel == 2 and not less.layout.offload and less.peak_gib < plan.peak_gib
    both = {"param_offload": True, "optimizer_offload": True}
    assert plan_run(collocated(model, **both), config, 8, 79.0).layout.offload
    assert not plan_run(collocated(model), config, 8, 15.0).fits


def test_servers_share_the_gpus_of_several_ranks_or_have_their_own(model: str) -> None:
    config = TrainConfig(steps=1)
    shared = ll.Policy.vllm(model, replicas=2, collocated=True, learner=verl(collocated=True))
    assert plan_run(shared, config, 8, 79.0).layout.engine.tensor_parallel == 4
    apart = ll.Policy.vllm(model, replicas=2, learner=verl(), options={"tensor_parallel_size": 2})
    with pytest.raises(WorkersMissingError, match="work on 12 GPUs, and workers asks for 8"):
        plan_run(apart, config, 8, 79.0)
    assert not plan_run(apart, config, 12, 79.0).layout.collocated
    elsewhere = ll.Policy.vllm(model, url="http://a:8000", learner=verl())
    assert plan_run(elsewhere, config, 8, 79.0).worst == "learning"


def test_lora_trains_little_and_needs_no_copy_for_its_reference(model: str) -> None:
    config = TrainConfig(steps=1, kl_coef=0.1)
    whole = plan_run(ll.Policy.vllm(model, url="http://a", learner=verl()), config, 8, 79.0)
    lora = plan_run(ll.Policy.vllm(model, url="http://a", learner=verl(model={"lora_rank": 16})), config, 8, 79.0)
    assert lora.layout.lora_rank == 16 and not lora.layout.reference
    assert lora.total("learning") < whole.total("learning") - 8


def test_the_embedded_policy_keeps_everything_on_one_gpu(model: str) -> None:
    plan = plan_run(ll.Policy.torch(model, device="cuda", dtype="bfloat16"), TrainConfig(steps=1), 8, 79.0)
    assert plan.layout.gpus == 1 and plan.layout.weights == "bfloat16" and not plan.layout.checkpointing
    assert plan.layout.engine.shares_weights and not plan.fits


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda model: ll.Policy.vllm(model, learner=verl(strategy="megatron", collocated=True), collocated=True),
            "Megatron splits.*over 8 GPUs, .* take 17.2 GiB of each one's 79",
        ),
        (lambda model: StandInPolicy(), "only those of ll.Policy.torch"),
        (lambda model: ll.Policy.torch("/nowhere", device="cuda"), "no model directory"),
    ],
)
def test_what_cannot_be_planned_says_why(make: Callable[[str], object], said: str, model: str) -> None:
    with pytest.raises(NoPlanError, match=said):
        plan_run(make(model), TrainConfig(steps=1), 8, 79.0)


def test_megatron_that_cannot_fit_however_it_splits_is_refused(model: str) -> None:
    few = ll.Policy.vllm(model, url="http://a", learner=verl(1, strategy="megatron"))
    with pytest.raises(DoesNotFitError, match=r"137\.3 GiB of each one's 79"):
        plan_run(few, TrainConfig(steps=1), 8, 79.0)
    lora = ll.Policy.vllm(model, url="http://a", learner=verl(1, strategy="megatron", model={"lora_rank": 16}))
    with pytest.raises(NoPlanError, match=r"15\.9 GiB"):
        plan_run(lora, TrainConfig(steps=1), 8, 79.0)


def test_what_learns_on_cpus_is_planned_in_the_machines_memory(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "machine_gib", lambda: 8.0)
    config = TrainConfig(steps=1, token_budget=4096)
    embedded = plan_run(ll.Policy.torch(model), config, 0, None)
    parameters = embedded.shape.parameters
    named = {(line.moment, line.name): line.bytes for line in embedded.lines}
    assert named["learning", "weights"] == named["learning", "gradients"] == 4 * parameters
    assert named["learning", "moments"] == 8 * parameters and ("sampling", "engine's weights") not in named
    with pytest.raises(DoesNotFitError, match=r"GiB of the machine while learning, and it has 8 GiB.*a larger machine"):
        embedded.check()
    ranks = ll.Policy.vllm(model, collocated=True, learner=ll.Learner.verl(2, collocated=True))
    both = plan_run(ranks, config, 0, None)
    named = {(line.moment, line.name): line.bytes for line in both.lines}
    assert named["learning", "weights"] == named["learning", "engine's weights"] == 4 * parameters
    assert both.layout.micro_batch_tokens == 2 * 4096 and not both.layout.checkpointing
    served = plan_run(ranks, config, 8, 79.0)  # by servers on GPUs
    assert served.total("learning") < both.total("learning") - 4 * parameters / GIB
    assert "8.19 B parameters on CPUs with 8 GiB: DOES NOT FIT" in str(both)


def test_a_kind_that_tells_no_memory_is_not_planned(model: str) -> None:
    with pytest.raises(NoPlanError, match="Name its kind"):
        plan_run(collocated(model), TrainConfig(steps=1), 8, None)


async def test_fit_prints_the_plan_and_refuses_one_that_cannot_fit(
    open_lab: Callable[..., Lab], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = open_lab()
    lab._submissions.jobs = Cluster()  # type: ignore[assignment]
    eight = Workers(gpus=8, kind="A100")

    def trainer(**settings: Any) -> ll.Trainer:
        return ll.Trainer(lab, asker, tasks(), says_yes, n=2, groups=2, **settings)

    with pytest.raises(WorkersMissingError, match="16 A100 GPUs are asked for, and the cluster has 8"):
        trainer().fit(1, workers=Workers(gpus=16, kind="A100"))
    lab.arguments = {"policy": collocated(model)}
    with pytest.raises(DoesNotFitError, match=r"needs .* while learning, and a GPU has 79 GiB.*micro_batch_tokens"):
        trainer(token_budget=49_152).fit(1, workers=eight)
    assert "8.19 B parameters on 8 × 79 GiB: DOES NOT FIT" in capsys.readouterr().out
    assert not lab.store.runs(), "a refused run has begun nothing"
    run = await trainer().fit(1, workers=eight)
    assert run.state == "finished" and "8.19 B parameters on 8 × 79 GiB: fits" in capsys.readouterr().out
