"""``isolation="bwrap"``: an agent that sees the system read-only, its own folders, the gateway, and nothing else.

Bubblewrap makes the namespaces. Inside, the program starts anew (`sandboxed`): a fork cannot be moved into them. What
is visible is listed here, by name; whatever is not listed does not exist for the agent.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import lightning_lab
from lightning_lab.controller.environment import Access
from lightning_lab.controller.workdirs import Workdir
from lightning_lab.harnesses import Harness
from lightning_lab.harnesses.installing import harness_cache
from lightning_lab.harnesses.source import own_files

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store")
_SETTINGS = (
    *("alternatives", "ca-certificates", "crypto-policies", "group", "host.conf", "hosts", "inputrc", "java"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "locale.alias", "magic", "mime.types", "nsswitch.conf"),
    *("os-release", "passwd", "pki/ca-trust", "pki/tls/certs", "profile", "protocols", "services", "shells"),
    *("ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone"),
)
"""Below ``/etc``: what programs need to run, no secrets."""
_NAMESPACES = ("user", "ipc", "pid", "net", "uts", "cgroup-try")
_GATEWAY = "/gateway.sock"
"""The gateway's Unix socket, inside: outside its path may be longer than a socket's address can hold."""
_LOWEST_PORT = 1024
"""Below it an agent without privileges cannot listen."""


class SandboxError(RuntimeError):
    """This machine cannot make the sandbox; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class _InsideAccess:
    url: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """How agents are shut in. ``program`` is bubblewrap's path, ``readable`` are further paths that they may read."""

    program: str
    readable: tuple[str, ...] = ()

    @classmethod
    def find(cls, readable: Sequence[str | Path] = ()) -> Sandbox:
        """Raises `SandboxError`: a path is not there, bubblewrap is not, or the kernel lets it make no namespaces."""
        paths = [Path(path).expanduser().resolve() for path in readable]
        if missing := [str(path) for path in paths if not path.exists()]:
            raise SandboxError(f"Agents are to read {', '.join(missing)}, which is not there.")
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxError(
                'isolation="bwrap" needs bubblewrap, which is not installed. Install it (Debian, Ubuntu: sudo apt-get '
                "install bubblewrap; Fedora: sudo dnf install bubblewrap), or leave isolation out: agents are "
                "unsandboxed then."
            )
        tried = subprocess.run([program, *_shut_in(), *_system(), "true"], capture_output=True, text=True)
        if tried.returncode:
            raise SandboxError(
                f"{program} cannot make a sandbox here: {tried.stderr.strip()}. In a container it needs leave for user "
                "namespaces (docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined); on "
                "Ubuntu 24.04 and later, sysctl kernel.apparmor_restrict_unprivileged_userns=0. Or leave isolation "
                "out: agents are unsandboxed then."
            )
        return cls(program=program, readable=tuple(map(str, paths)))

    def inside(self, access: Access) -> Access:
        """The way to the model as the agent finds it: the forwarder at the gateway's port, on its own loopback."""
        parts = urlsplit(access.url)
        return _InsideAccess(urlunsplit(parts._replace(netloc=f"127.0.0.1:{inside_port(access.url)}")), access.key)

    def spec(self, harness: Harness, workdir: Workdir, gateway: Path, port: int) -> dict[str, Any]:
        """What the agent's process needs to shut itself in; ``gateway`` is the Unix socket that leads there."""
        package = Path(lightning_lab.__file__).parent
        argv = [
            *(self.program, *_shut_in(), *_system()),
            *("--bind", str(workdir.temporary), "/tmp", "--symlink", "/tmp", "/var/tmp"),
            *_read_only([*self._visible(harness), str(package)]),
            *(part for folder in (workdir.work, workdir.home) for part in ("--bind", str(folder), str(folder))),
            *("--bind", str(gateway), _GATEWAY, "--chdir", str(workdir.work), "--remount-ro", "/", "--"),
            *(sys.executable, "-P", "-m", "lightning_lab.controller.sandboxed"),
        ]
        return {"argv": argv, "package": str(package.parent), "gateway": _GATEWAY, "port": port}

    def _visible(self, harness: Harness) -> list[str]:
        """Installed programs and packages, and of the user's own: imported modules, named files, ``readable``."""
        named = [part for part in harness.argv if Path(part).is_absolute() and Path(part).is_file()]
        own = [name for name, _ in own_files()] if harness.function is not None else []
        return [sys.prefix, sys.base_prefix, *_site_folders(), str(harness_cache()), *own, *named, *self.readable]


def inside_port(url: str) -> int:
    return max(urlsplit(url).port or 80, _LOWEST_PORT)


def enclosed(env: Mapping[str, str]) -> dict[str, str]:
    """The agent's variables as they are inside."""
    return {**env, "TMPDIR": "/tmp"}


def _shut_in() -> list[str]:
    return [*(f"--unshare-{name}" for name in _NAMESPACES), "--cap-drop", "ALL", "--die-with-parent"]


@cache
def _system() -> tuple[str, ...]:
    existing = [path for path in (*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS)) if Path(path).exists()]
    return (*_read_only(existing), "--proc", "/proc", "--dev", "/dev")


def _site_folders() -> list[str]:
    """Folders of installed packages that are in neither prefix: those of the user."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def _read_only(paths: Sequence[str]) -> list[str]:
    """Each once, outer folders first: what is mounted later covers what was there."""
    return [part for path in sorted(set(paths)) for part in ("--ro-bind-try", path, path)]
