"""A real JupyterLab server on a free port, and the Chromium that looks at it: for tests, benchmarks and screenshots."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
BASE_URL = "/user/ann"
"""As JupyterHub serves it: nothing may assume that the server is at the root."""
NO_NEWS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


class ServerError(RuntimeError):
    """JupyterLab did not come up; its log says why."""


@dataclass(frozen=True)
class JupyterLab:
    url: str
    token: str
    root: Path
    folder: str = ""
    """Of the files, below the server's own; a page for it has a layout of its own too."""

    def page_url(self, path: str) -> str:
        place = f"workspaces/{self.folder}/tree/{self.folder}" if self.folder else "tree"
        return f"{self.url}/lab/{place}/{path}?token={self.token}"

    def within(self, folder: str) -> JupyterLab:
        """The same server for one test alone."""
        root = self.root / folder
        root.mkdir()
        return replace(self, root=root, folder=folder)

    def end_kernels(self) -> None:
        """Whatever the pages started."""
        for session in json.loads(self._api("sessions").read()):
            self._api(f"sessions/{session['id']}", "DELETE")

    def _api(self, path: str, method: str = "GET") -> Any:
        headers = {"Authorization": f"token {self.token}"}
        return urllib.request.urlopen(urllib.request.Request(f"{self.url}/api/{path}", headers=headers, method=method))


@contextmanager
def running(
    folder: Path, log_path: Path, settings: Mapping[str, Any] | None = None, options: Sequence[str] = ()
) -> Iterator[JupyterLab]:
    """A server whose files, configuration and kernels' homes are in ``folder``.

    ``settings``: overrides by plugin; ``options``: more of the command line.
    """
    config = folder / "config" / "labconfig"
    config.mkdir(parents=True)
    (config / "default_setting_overrides.json").write_text(json.dumps({**NO_NEWS, **(settings or {})}))
    root = folder / "work"
    root.mkdir()
    port, token = _free_port(), secrets.token_hex(16)
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(config.parent),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", f"--ServerApp.base_url={BASE_URL}/"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}", *options]
    with log_path.open("w") as log:
        server = subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            lab = JupyterLab(f"http://127.0.0.1:{port}{BASE_URL}", token, root)
            _wait_until_up(lab, server, log_path)
            yield lab
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(lab: JupyterLab, server: subprocess.Popen[bytes], log_path: Path) -> None:
    for _ in range(450):
        if server.poll() is not None:
            raise ServerError(f"JupyterLab ended with {server.returncode}; see {log_path}")
        try:
            urllib.request.urlopen(f"{lab.url}/api?token={lab.token}", timeout=1)
            return
        except OSError:
            time.sleep(0.2)
    raise ServerError(f"JupyterLab did not answer within 90 s; see {log_path}")
