"""Recipes: complete, typed, within the memory of the machine that they name, and really run where a CPU is enough."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_lab.cluster import WorkersMissingError
from lightning_lab.controller.kubernetes.settings import ClusterError
from lightning_lab.notebook.recipes import RecipeError, load_recipe, run_recipe
from lightning_lab.planning import DoesNotFitError
from lightning_lab.store import Store

RECIPES = Path(__file__).parents[3] / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


def changed(tmp_path: Path, name: str, **changes: Any) -> Path:
    """A copy beside the recipe's Python files; ``a__b=…`` replaces what stands at ``a.b``."""
    recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    for place, value in changes.items():
        *parents, key = place.split("__")
        part = recipe
        for parent in parents:
            part = part[parent]
        part[key] = value
    for file in RECIPES.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_valid_and_fits_its_machine(name: str) -> None:
    recipe = load_recipe(RECIPES / f"{name}.yaml")
    assert recipe.name == name
    recipe.config().check_loss()
    plan = recipe.plan()
    plan.check()
    assert 0.4 * recipe.machine.gpu_gib < plan.peak_gib <= recipe.machine.gpu_gib
    assert recipe._grader().name and "GiB" in recipe._repr_html_()


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_that_is_too_small_is_refused_before_anything_starts(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(changed(tmp_path, name, machine__gpu_gib=2.0))
    with pytest.raises(DoesNotFitError, match=r"and (it|a GPU) has 2 GiB"):
        recipe.open(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "config"),
    [("qwen3_5_9b_swe", "Qwen3_5TextConfig"), ("qwen3_5_35b_a3b_swe", "Qwen3_5MoeTextConfig")],
)
def test_sizes_are_those_that_transformers_has_for_the_model(name: str, config: str) -> None:
    import transformers

    known = getattr(transformers, config)()
    sizes = {**load_recipe(RECIPES / f"{name}.yaml").memory.sizes, "full_attention_interval": None}
    assert {key: getattr(known, key) for key, value in sizes.items() if value is not None} == {
        key: value for key, value in sizes.items() if value is not None
    }
    assert known.layer_types.count("full_attention") == known.num_hidden_layers // 4


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("qwen")])
def test_a_machine_without_the_gpus_is_refused_before_anything_starts(name: str, tmp_path: Path) -> None:
    with pytest.raises(WorkersMissingError, match="8 A100-80G GPUs are asked for"):
        load_recipe(RECIPES / f"{name}.yaml").open(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("policy__options", {"replica": 8}, "there is no key policy.options.replica; the nearest is replicas"),
        ("learner__options", {"rank": 8}, "there is no key learner.options.rank; the nearest is ranks"),
        ("learner__options", {"ranks": 8, "nodes": 3}, "8 ranks on 3 nodes"),
        ("learner__options", {"optimizer": {"lr": 1}}, "learning_rate of the trainer"),
    ],
)
def test_options_of_policy_and_learner_are_checked(place: str, value: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=said):
        load_recipe(changed(tmp_path, "qwen3_5_9b_swe", **{place: value}))


def test_a_recipe_runs_to_its_end_with_the_embedded_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(tmp_path, "smollm2_cpu", policy__model="quickstart", trainer__n=2, steps=2)
    assert run_recipe(path, tmp_path / "runs", threading.Event()) == 0
    said = capsys.readouterr().out
    assert "0.00 B parameters on CPUs with 7 GiB: fits" in said and "finished" in said
    stores = [Store(store, read_only=True) for store in (tmp_path / "runs").glob("*/store.sqlite")]
    trained = [(store, run) for store in stores for run in store.runs() if run.kind == "fit"]
    assert trained and all(len(store.steps(run.id)) == 2 for store, run in trained)
    assert all(rollout.reward is not None for store, run in trained for rollout in store.rollouts(run.id))
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"polcy": {}}, "there is no key polcy; the nearest is policy"),
        ({"policy__modle": "x"}, "there is no key policy.modle; the nearest is model"),
        ({"trainer__learning_rat": 1}, "there is no key trainer.learning_rat; the nearest is learning_rate"),
        ({"memory__engine__sequence_token": 1}, "memory.engine.sequence_token; the nearest is sequence_tokens"),
        ({"machine__gpus": "eight"}, "machine.gpus: input should be a valid integer"),
        ({"machine__kind": "B9000"}, "no kind 'B9000' of GPU"),
        ({"trainer__estimator": "grop"}, "There is no estimator 'grop'"),
        ({"memory__sizes": {"model_type": "mamba2"}, "policy__model": "none"}, "'mamba2' are not known"),
        ({"harness": {"python": "sums.py:asker", "profile": "codex"}}, "one of python, profile and image; here are 2"),
        ({"tasks": {}}, "either python or jsonl"),
        ({"harness": {"image": "agent:1"}}, "both harness.image and kubernetes.namespace"),
        ({"kubernetes": {"namespace": "rl"}}, "both harness.image and kubernetes.namespace"),
        (
            {"harness": {"image": "a"}, "kubernetes": {"namespace": "rl", "contxt": "x"}},
            "kubernetes.contxt; the nearest",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=said.replace("(", r"\(")):
        load_recipe(changed(tmp_path, "smollm2_cpu", **changes))


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path / "none.yaml")
    recipe = load_recipe(changed(tmp_path, "smollm2_cpu", grader="sums.py:closer", tasks={"jsonl": "no.jsonl"}))
    with pytest.raises(RecipeError, match="closer' names no grader"):
        recipe._grader()
    with pytest.raises(RecipeError, match=r"no\.jsonl cannot be read"):
        recipe._tasks()


def test_an_image_is_run_in_the_cluster_that_the_recipe_names(tmp_path: Path) -> None:
    cluster = {"namespace": "rl", "gateway_url": "http://10.0.0.1:8000", "kubeconfig": str(tmp_path / "no-config")}
    settings = {"policy__model": "quickstart", "harness": {"image": "agent:1"}, "kubernetes": cluster}
    with pytest.raises(ClusterError, match="no usable configuration of a cluster"):
        load_recipe(changed(tmp_path, "smollm2_cpu", **settings)).open(tmp_path / "runs")
