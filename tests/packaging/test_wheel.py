"""The wheel in an existing JupyterLab: extension, kernel, checkpoint and notebook inside, no Node needed."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, Environment, create_environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel on top of the packages that are here already (their own copy of it stays behind this one)."""
    environment = create_environment(tmp_path_factory.mktemp("venv") / "v")
    site = next((environment.path / "lib").glob("python*/site-packages"))
    (site / "existing.pth").write_text(sysconfig.get_path("purelib"))
    environment.run("python", "-m", "pip", "install", "--no-deps", "--quiet", str(wheel), cwd=site)
    return environment


def test_wheel_holds_what_a_user_needs(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "lightning_lab/_shipped/quickstart.ipynb",
        "lightning_lab/policy/quickstart/checkpoint/model.safetensors",
        "share/jupyter/labextensions/lightning-lab/package.json",
        "share/jupyter/labextensions/lightning-lab/install.json",
        "share/jupyter/kernels/lightning-lab/kernel.json",
        "etc/jupyter/jupyter_server_config.d/lightning-lab.json",
    ):
        assert any(name.endswith(wanted) for name in names), f"{wanted} is not in the wheel"
    assert not [name for name in names if "node_modules" in name or name.startswith("tests/")]
    assert len(names) == len(set(names)), "a file is in the wheel twice"


def test_extension_and_kernel_are_found(installed: Environment, tmp_path: Path) -> None:
    extensions = installed.run("python", "-m", "jupyterlab.labextensions", "list", cwd=tmp_path)
    assert "lightning-lab" in extensions and str(installed.path) in extensions
    kernels = json.loads(installed.run("python", "-m", "jupyter_client.kernelspecapp", "list", "--json", cwd=tmp_path))
    assert kernels["kernelspecs"]["lightning-lab"]["resource_dir"].startswith(str(installed.path))


def test_command_copies_the_notebook(installed: Environment, tmp_path: Path) -> None:
    installed.run("lightning-lab", "quickstart", str(tmp_path), cwd=tmp_path)
    notebook = json.loads((tmp_path / "quickstart.ipynb").read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"


def test_shipped_model_answers_from_the_wheel(installed: Environment, tmp_path: Path) -> None:
    program = "import lightning_lab as ll; lab = ll.Lab(policy=ll.Policy.torch('quickstart')); print(lab); lab.close()"
    assert "quickstart" in installed.run("python", "-c", program, cwd=tmp_path)
