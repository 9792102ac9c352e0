"""A real JupyterLab server on a free port and a real Chromium."""

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ARTIFACTS = Path(__file__).parents[1] / "artifacts" / "browser"
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


@dataclass(frozen=True)
class JupyterLab:
    url: str
    token: str
    root: Path

    def page_url(self, notebook: str) -> str:
        return f"{self.url}/lab/tree/{notebook}?token={self.token}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def jupyterlab(tmp_path: Path) -> Iterator[JupyterLab]:
    config = tmp_path / "config" / "labconfig"
    config.mkdir(parents=True)
    (config / "default_setting_overrides.json").write_text(json.dumps(NO_NEWS))
    root = tmp_path / "work"
    root.mkdir()
    port, token = free_port(), secrets.token_hex(16)
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(config.parent),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.base_url={BASE_URL}/",
    ]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}"]
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    with (ARTIFACTS / "jupyterlab.log").open("w") as log:
        server = subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            lab = JupyterLab(f"http://127.0.0.1:{port}{BASE_URL}", token, root)
            wait_until_up(lab, server)
            yield lab
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def wait_until_up(lab: JupyterLab, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if server.poll() is not None:
            pytest.fail(f"JupyterLab ended with {server.returncode}; see {ARTIFACTS / 'jupyterlab.log'}")
        try:
            urllib.request.urlopen(f"{lab.url}/api?token={lab.token}", timeout=1)
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail("JupyterLab did not answer within a minute")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1600, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    page.screenshot(path=ARTIFACTS / f"{request.node.name}-last.png")
    context.close()
