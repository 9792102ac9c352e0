"""The real Agent Lightning: fetched once into the user's cache, never committed.

    python tests/python/gateway/agl_package.py

Its client, its controller and their few dependencies go into a folder of their own, without what its trainer needs
(verl, torch). It asks for Python 3.12; what is used here runs on 3.11 as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "1.0.2"
PACKAGES = (
    f"agentlightning=={VERSION}",
    "antlr4-python3-runtime==4.9.3",
    "hydra-core==1.3.2",
    "omegaconf==2.3.0",
    "structlog==25.5.0",
)


def directory() -> Path:
    """Where it is, for PYTHONPATH; fetched first if it is not there. It is there whole or not at all."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = base / "lightning-lab" / f"agentlightning-{VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "made"
        options = ["-q", "--disable-pip-version-check", "--no-deps", "--ignore-requires-python", "--target", str(made)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *PACKAGES], check=True)
        made.rename(target)
    return target


if __name__ == "__main__":
    print(directory())
