"""Recipes: a whole run in one YAML file. ``ll.recipe("smollm2_cpu.yaml").trainer()`` or ``lightning-lab run FILE``."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import cloudpickle
import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from lightning_lab.cluster import Workers, connect
from lightning_lab.harnesses import Harness
from lightning_lab.notebook.lab import Lab
from lightning_lab.notebook.policies import Learner, LearnerSpec, Policy, PolicySpec
from lightning_lab.notebook.trainer import Trainer
from lightning_lab.planning import EngineLayout, Layout, MemoryPlan, ModelShape, plan_memory
from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.records import Sampling
from lightning_lab.tasks import Grader, TaskSet, from_rows
from lightning_lab.training import ConfigError, TrainConfig


class RecipeError(ValueError):
    """A recipe that cannot be run as it is written; the message names each place in it."""


_OF_THE_MACHINE = ("engine", "gpus", "gpu_gib", "on_cpus")
"""Fields of `Layout` that are not given in ``memory.layout``."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyPart(_Part):
    """Who answers: ``ll.Policy.torch(model, **options)`` or ``ll.Policy.vllm``."""

    kind: Literal["torch", "vllm"]
    model: str
    """A name that `catalog.resolve_model` knows, or a model directory; ``~`` and paths beside the recipe work."""
    options: dict[str, Any] = Field(default_factory=dict)


class LearnerPart(_Part):
    """Who learns beside vLLM: ``ll.Learner.torch(**options)`` or ``ll.Learner.verl``."""

    kind: Literal["torch", "verl"]
    options: dict[str, Any] = Field(default_factory=dict)


class HarnessPart(_Part):
    """The agent: one of ``python`` (``file.py:name``), ``profile``, or ``image`` with ``command`` for pods."""

    python: str | None = None
    profile: str | None = None
    image: str | None = None
    command: list[str] = Field(default_factory=list)
    timeout_s: float = 1800.0


class TasksPart(_Part):
    """Tasks: one of ``python`` (``file.py:name``, a function without arguments) or ``jsonl``, one object a line."""

    python: str | None = None
    jsonl: str | None = None
    prompt: str = "prompt"
    answer: str = "answer"


class MachinePart(_Part):
    """What it is made for. ``gpu_gib``: memory of one GPU, or the machine's where there is none."""

    gpus: int = 0
    kind: str | None = None
    gpu_gib: float
    cluster: str = "local"


class MemoryPart(_Part):
    """The memory plan's settings (`planning.Layout` and `EngineLayout`); ``sizes``: the model's ``config.json``."""

    sizes: dict[str, Any]
    layout: dict[str, Any]
    engine: dict[str, Any] = Field(default_factory=dict)


class Recipe(_Part):
    """One run: validated, not yet started."""

    name: str
    about: str
    policy: PolicyPart
    learner: LearnerPart | None = None
    harness: HarnessPart
    tasks: TasksPart
    grader: str
    """``file.py:name``, beside the recipe."""
    machine: MachinePart
    memory: MemoryPart
    lab: dict[str, Any] = Field(default_factory=dict)
    """Arguments of ``ll.Lab``: ``concurrency``, ``host``, ``port``, ``gateway``."""
    kubernetes: dict[str, Any] = Field(default_factory=dict)
    """Arguments of ``lab.kubernetes``, for a harness with an ``image``: ``namespace`` and others."""
    steps: int
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Settings of ``ll.Trainer``, those of `training.TrainConfig`."""
    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    @property
    def workers(self) -> Workers:
        return Workers(gpus=self.machine.gpus, kind=self.machine.kind)

    def config(self) -> TrainConfig:
        """Raises `training.ConfigError`."""
        return TrainConfig(steps=self.steps, **self._settings())

    def plan(self) -> MemoryPlan:
        """What each GPU will hold; of the model's own sizes where it is here, else of those the recipe gives."""
        layout = Layout(
            gpus=max(1, self.machine.gpus),
            gpu_gib=self.machine.gpu_gib,
            on_cpus=not self.machine.gpus,
            engine=EngineLayout(**self.memory.engine),
            **self.memory.layout,
        )
        return plan_memory(self._shape(), layout)

    def trainer_in(self, lab: Lab) -> Trainer:
        """Harness, tasks, grader and settings, in an open lab."""
        return Trainer(lab, self._harness(), self._tasks(), self._grader(), **self._settings())

    def open(self, runs: str | Path = "runs") -> Trainer:
        """Check memory plan and GPUs, open the lab, and give the trainer: ``trainer.fit(recipe.steps)`` trains.

        Raises `planning.DoesNotFitError`, `cluster.WorkersMissingError` where the recipe's cluster has not its GPUs,
        and what ``ll.Lab``, ``lab.kubernetes`` and ``ll.Trainer`` raise.
        """
        self.plan().check()
        if self.workers.gpus:
            self.workers.check(connect(self.machine.cluster).nodes())
        lab = Lab(self._policy(), runs=runs, **self.lab)
        try:
            if self.kubernetes:
                lab.kubernetes(**self.kubernetes)
            return self.trainer_in(lab)
        except BaseException:
            lab.close()
            raise

    def _repr_html_(self) -> str:
        return self.plan()._repr_html_()

    def _shape(self) -> ModelShape:
        try:
            config = json.loads((resolve_model(self._model()) / "config.json").read_text(encoding="utf-8"))
        except (PolicyError, OSError):
            config = self.memory.sizes
        return ModelShape.from_config(config)

    def _model(self) -> str:
        beside = self._folder / self.policy.model
        return str(beside) if "/" in self.policy.model and beside.is_dir() else self.policy.model

    def _policy(self) -> PolicySpec:
        if self.policy.kind == "torch":
            return Policy.torch(self._model(), **self.policy.options)
        learner: LearnerSpec | None = None
        if self.learner is not None:
            learner = getattr(Learner, self.learner.kind)(**self.learner.options)
        return Policy.vllm(self._model(), learner=learner, **self.policy.options)

    def _settings(self) -> dict[str, Any]:
        settings = dict(self.trainer)
        if "sampling" in settings:
            settings["sampling"] = Sampling(**settings["sampling"])
        return settings

    def _harness(self) -> Harness:
        part = self.harness
        if part.python:
            found: Harness = self._named(part.python, Harness)
            return found
        if part.profile:
            return Harness.profile(part.profile, timeout_s=part.timeout_s)
        return Harness.kubernetes(part.image or "", part.command, timeout_s=part.timeout_s)

    def _tasks(self) -> TaskSet:
        if self.tasks.python:
            made: TaskSet = self._named(self.tasks.python, object)()
            return made
        path = self._folder / Path(self.tasks.jsonl or "").expanduser()
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise RecipeError(f"{self.name}: the tasks {path} cannot be read: {error}.") from error
        return from_rows(rows, prompt=self.tasks.prompt, answer=self.tasks.answer, source=path.stem)

    def _grader(self) -> Grader:
        found: Grader = self._named(self.grader, Grader)
        return found

    def _named(self, reference: str, kind: type) -> Any:
        """``file.py:name``, beside the recipe."""
        file, _, name = reference.partition(":")
        found = getattr(_module(self._folder / file), name, None)
        if not isinstance(found, kind) or found is None:
            raise RecipeError(f"{self.name}: {reference!r} names no {kind.__name__.lower()}; the form is file.py:name.")
        return found


def load_recipe(path: str | Path) -> Recipe:
    """Read and validate a recipe; nothing is started. Raises `RecipeError`, naming every place that is wrong."""
    path = Path(path).expanduser().absolute()
    try:
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise RecipeError(f"The recipe {path} cannot be read: {error}") from error
    try:
        recipe = Recipe.model_validate(text)
    except ValidationError as error:
        said = "; ".join(_explained(found) for found in error.errors())
        raise RecipeError(f"The recipe {path.name} is not valid: {said}.") from error
    recipe._folder = path.parent
    _check(recipe)
    return recipe


def run_recipe(path: Path, runs: Path, ended: threading.Event) -> int:
    """Train to the end, or until ``ended`` is set; the exit status. Prints the plan and how the run goes."""
    recipe = load_recipe(path)
    print(recipe.plan(), flush=True)
    trainer = recipe.open(runs)
    try:
        run = trainer.fit(recipe.steps)
        while not run.join(1.0):
            if ended.is_set():
                run.stop()
        print(run)
        return 0 if run.state in ("finished", "stopped") else 1
    finally:
        trainer.lab.close()


def _check(recipe: Recipe) -> None:
    """What the parts say together. Raises `RecipeError`."""
    of_harness = [name for name in ("python", "profile", "image") if getattr(recipe.harness, name)]
    if len(of_harness) != 1:
        raise RecipeError(f"{recipe.name}: harness has one of python, profile and image; here are {len(of_harness)}.")
    if not bool(recipe.harness.image) == bool(recipe.kubernetes) == ("namespace" in recipe.kubernetes):
        raise RecipeError(
            f"{recipe.name}: a harness with an image runs in pods, and only such a one: give both harness.image and "
            "kubernetes.namespace, or neither."
        )
    if bool(recipe.tasks.python) == bool(recipe.tasks.jsonl):
        raise RecipeError(f"{recipe.name}: tasks has either python or jsonl.")
    known = {
        "trainer": [field.name for field in fields(TrainConfig) if field.name != "steps"],
        "memory.layout": [field.name for field in fields(Layout) if field.name not in _OF_THE_MACHINE],
        "memory.engine": [field.name for field in fields(EngineLayout)],
        "lab": ["concurrency", "gateway", "host", "port"],
        "kubernetes": [name for name in inspect.signature(Lab.kubernetes).parameters if name != "self"],
    }
    given = {
        "trainer": recipe.trainer,
        "memory.layout": recipe.memory.layout,
        "memory.engine": recipe.memory.engine,
        "lab": recipe.lab,
        "kubernetes": recipe.kubernetes,
    }
    unknown = [
        _unknown(f"{part}.{key}", known[part]) for part in known for key in given[part] if key not in known[part]
    ]
    if unknown:
        raise RecipeError(f"The recipe {recipe.name} is not valid: {'; '.join(unknown)}.")
    _check_options(recipe)
    try:
        recipe.workers  # noqa: B018 - the kind of GPU is checked when they are made
        recipe.config()
        recipe.plan()
    except (ConfigError, TypeError, ValueError) as error:
        raise RecipeError(f"The recipe {recipe.name} is not valid: {error}") from error


def _check_options(recipe: Recipe) -> None:
    """Options of policy and learner, by the names that their classes take. Raises `RecipeError`."""
    try:
        kinds = [("policy", recipe.policy.options, _policy_class(recipe.policy.kind))]
        if recipe.learner is not None:
            kinds.append(("learner", recipe.learner.options, _learner_class(recipe.learner.kind)))
    except ImportError:
        return  # without the train extra nothing of it can run here, which opening the recipe says
    for place, options, kind in kinds:
        parts = () if kind.__name__ == "VerlSettings" else ("model", "learner")  # which a recipe has elsewhere
        known = [name for name in inspect.signature(kind).parameters if name not in parts]
        unknown = [_unknown(f"{place}.options.{key}", known) for key in options if key not in known]
        if unknown:
            raise RecipeError(f"The recipe {recipe.name} is not valid: {'; '.join(unknown)}.")
        if kind.__name__ == "VerlSettings":
            try:
                kind(**options)
            except PolicyError as error:
                raise RecipeError(f"The recipe {recipe.name} is not valid: learner: {error}") from error


def _policy_class(kind: str) -> type:
    if kind == "vllm":
        from lightning_lab.policy.vllm import VllmPolicy

        return VllmPolicy
    from lightning_lab.policy.torch import TorchPolicy

    return TorchPolicy


def _learner_class(kind: str) -> type:
    if kind == "verl":
        from lightning_lab.policy.verl.settings import VerlSettings

        return VerlSettings
    from lightning_lab.policy.torch.detached import DetachedTorchLearner

    return DetachedTorchLearner


def _explained(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        part: Any = Recipe
        for step in error["loc"][:-1]:
            annotation = part.model_fields[step].annotation
            part = next((one for one in (annotation, *getattr(annotation, "__args__", ())) if _is_part(one)), part)
        return _unknown(place, list(part.model_fields))
    return f"{place}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, _Part)


def _unknown(place: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(place.rpartition(".")[2], known, n=1, cutoff=0)
    return f"there is no key {place}" + (f"; the nearest is {near[0]}" if near else "")


def _module(path: Path) -> ModuleType:
    """A file beside the recipe. Its functions travel to other processes by value, as those of a cell do."""
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise RecipeError(f"There is no Python file {path}.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    return module
