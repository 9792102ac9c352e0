"""Checks of an installation: what works, what does not, and what to do."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from lightning_lab.cluster import Workers
from lightning_lab.notebook import doctor_machine as machine
from lightning_lab.notebook.doctor_network import gateway_address, head_of, proxies
from lightning_lab.notebook.finding import Finding
from lightning_lab.notebook.recipes import Recipe
from lightning_lab.policy.engines.versions import SUPPORTED

EXTENSION = "lightning-lab"
REQUIRED = ("ipykernel", "jupyterlab", "fastapi", "uvicorn", "numpy", "pandas", "plotly", "pillow", "cloudpickle")
TRAIN = ("torch", "transformers", "tokenizers", "safetensors", "jinja2")
QUICKSTART = ("openai-agents", "reasoning-gym")
_MODULES = {"pillow": "PIL", "openai-agents": "agents", "reasoning-gym": "reasoning_gym"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where a lab's gateway is to listen, whether agents run elsewhere, and the cluster that trains."""

    host: str = "127.0.0.1"
    port: int = 0
    elsewhere: bool = False
    cluster: str = "local"

    @classmethod
    def of(cls, recipe: Recipe) -> Network:
        listens = {name: recipe.lab[name] for name in ("host", "port") if name in recipe.lab}
        return cls(elsewhere=recipe.harness.image is not None, cluster=recipe.machine.cluster, **listens)


def examine(runs: Path, recipe: Recipe | None, at: Network) -> Iterator[Finding]:
    """All checks, in the order in which one would fix them; with a recipe also what that needs. None of them raises."""
    checks: Sequence[Callable[[], Finding]] = (
        _python,
        lambda: _packages("packages", REQUIRED, "problem", "pip install lightning-lab"),
        lambda: _packages("train extra", TRAIN, "note", 'pip install "lightning-lab[train]"'),
        machine.versions,
        _torch,
        machine.gpus,
        machine.memory,
        lambda: _packages("quickstart extra", QUICKSTART, "note", 'pip install "lightning-lab[quickstart]"'),
        _model,
        _extension,
        _kernelspec,
        lambda: gateway_address(at.host, at.port, elsewhere=at.elsewhere),
        lambda: proxies(os.environ, [at.host, *head_of(at.cluster)]),
        lambda: machine.ray_cluster(at.cluster, recipe.workers if recipe else Workers()),
        lambda: _runs(runs),
        lambda: machine.disk(runs),
        *(lambda engine=engine: machine.engine(engine) for engine in SUPPORTED),
        *(machine.recipe_checks(recipe) if recipe else ()),
    )
    for check in checks:
        try:
            yield check()
        except Exception as error:
            name = getattr(check, "__name__", "check").strip("_<>")
            yield Finding(name=name, level="problem", said=f"the check failed: {type(error).__name__}: {error}")


def _python() -> Finding:
    version = sys.version.split()[0]
    if sys.version_info < (3, 11):  # noqa: UP036 - a checkout can be started by any Python
        return Finding(name="python", level="problem", said=version, action="Install Python 3.11 or newer.")
    return Finding(name="python", level="ok", said=f"{version} ({sys.executable})")


def _packages(name: str, packages: Sequence[str], level: Literal["note", "problem"], action: str) -> Finding:
    missing = [package for package in packages if not _installed(package)]
    if missing:
        return Finding(name=name, level=level, said=f"not installed: {', '.join(missing)}", action=action)
    return Finding(name=name, level="ok", said=", ".join(f"{package} {_version(package)}" for package in packages))


def _torch() -> Finding:
    if not _installed("torch"):
        return Finding(
            name="device", level="note", said="no torch, so no embedded policy; runs can be opened and shown"
        )
    import torch

    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        return Finding(name="device", level="ok", said=f"{torch.cuda.device_count()} GPU ({', '.join(sorted(names))})")
    return Finding(name="device", level="ok", said=f"CPU, {torch.get_num_threads()} threads; enough for the quickstart")


def _model() -> Finding:
    from lightning_lab.policy.catalog import resolve_model

    try:
        return Finding(name="quickstart model", level="ok", said=str(resolve_model("quickstart")))
    except Exception as error:
        return Finding(name="quickstart model", level="problem", said=str(error))


def _extension() -> Finding:
    from jupyter_core.paths import jupyter_path

    found = [path for root in jupyter_path("labextensions") if (path := Path(root, EXTENSION, "package.json")).exists()]
    if not found:
        action = "pip install lightning-lab in the environment that runs JupyterLab, then reload the page."
        return Finding(
            name="JupyterLab extension", level="note", said="not installed in this environment", action=action
        )
    version = json.loads(found[0].read_text()).get("version", "?")
    if _disabled():
        action = f"jupyter labextension enable {EXTENSION}"
        return Finding(name="JupyterLab extension", level="problem", said=f"{version}, but disabled", action=action)
    own = _version("lightning-lab")
    if own and own != version:
        action = "Install the same version of lightning-lab in both environments."
        said = f"{version}, while the package is {own}"
        return Finding(name="JupyterLab extension", level="problem", said=said, action=action)
    return Finding(name="JupyterLab extension", level="ok", said=f"{version}, enabled ({found[0].parent})")


def _disabled() -> bool:
    from jupyter_core.paths import jupyter_path
    from jupyterlab_server.config import get_page_config

    page = get_page_config(jupyter_path("labextensions"))
    return any(name.split(":")[0] == EXTENSION for name in page.get("disabledExtensions", []))


def _kernelspec() -> Finding:
    from jupyter_client.kernelspec import KernelSpecManager

    if EXTENSION in KernelSpecManager().find_kernel_specs():
        return Finding(
            name="kernel", level="ok", said="'Lightning Lab' is in the launcher; plain Python 3 works as well"
        )
    return Finding(
        name="kernel", level="note", said="the 'Lightning Lab' kernel is not installed; plain Python 3 works"
    )


def _runs(runs: Path) -> Finding:
    nearest = next(folder for folder in (runs.absolute(), *runs.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        action = 'Choose another folder: ll.Lab(…, runs="…").'
        return Finding(name="runs folder", level="problem", said=f"{nearest}: {error.strerror}", action=action)
    return Finding(name="runs folder", level="ok", said=f"{runs.absolute()} can be written")


def _installed(package: str) -> bool:
    return find_spec(_MODULES.get(package, package)) is not None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
