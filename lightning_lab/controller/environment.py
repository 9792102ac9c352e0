"""What an agent's process gets to see of the world: little, and nothing of the kernel's secrets."""

from __future__ import annotations

import os
import site
import ssl
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Protocol

import lightning_lab

_PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")


class Access(Protocol):
    """A rollout's way to the model: its own URL and its own key."""

    @property
    def url(self) -> str: ...
    @property
    def key(self) -> str: ...


def scrubbed(home: Path, temporary: Path) -> dict[str, str]:
    """A fresh environment: PATH (this Python's programs first), locale, private HOME and TMPDIR.

    Numeric libraries get one thread: a fork copies only one, and many agents share few cores.
    """
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {
        "LANG": "C.UTF-8",
        **passed,
        "PATH": os.pathsep.join(programs),
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        **_trusted_certificates(),
    }


@cache
def _trusted_certificates() -> dict[str, str]:
    """The system's own, as a directory in which one is looked up when needed.

    A client that finds no such variable reads the whole bundle, about 45 ms each time, also to call plain http.
    """
    directory = Path(ssl.get_default_verify_paths().openssl_capath)
    return {"SSL_CERT_DIR": str(directory)} if any(directory.glob("*.0")) else {}


def for_agent(home: Path, temporary: Path, added: Mapping[str, str], access: Access, rollout_id: str) -> dict[str, str]:
    """The environment of one rollout. The way to the model comes last: a harness cannot point past the gateway."""
    return {**scrubbed(home, temporary), **added, **way_to_model(access.url, access.key, rollout_id)}


def way_to_model(url: str, key: str, rollout_id: str) -> dict[str, str]:
    """The variables by which an agent finds the gateway; ``url`` is the rollout's, without ``/v1``."""
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": key,
        "LIGHTNING_LAB_ROLLOUT": rollout_id,
    }


def for_server(home: Path, added: Mapping[str, str]) -> dict[str, str]:
    """The environment of a fork server: what it holds, every agent could read from its own memory."""
    environment = {
        **scrubbed(home, home),
        "DEFER_PYDANTIC_BUILD": "false",  # SDKs made with Stainless build their models on import: once, not per agent
        **added,
    }
    package = Path(lightning_lab.__file__).parent.parent
    if str(package) not in {*site.getsitepackages(), site.getusersitepackages()}:
        environment["PYTHONPATH"] = str(package)
    return environment


def import_path() -> list[str]:
    """This process's ``sys.path`` with the current directory spelt out.

    In another process an empty entry would mean *its* directory: a file named like a module, left there by an agent,
    would be imported.
    """
    return [str(Path(entry).resolve()) if entry in ("", ".") else entry for entry in sys.path]
