"""A real JupyterLab server on a free port and a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from real_lab import CHROMIUM, CHROMIUM_FLAGS, JupyterLab, running

ARTIFACTS = Path(__file__).parents[1] / "artifacts" / "browser"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is slow runs only where ``-m`` names it."""
    if "slow" not in config.option.markexpr:
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


EXPOSED = ("--LabApp.expose_app_in_browser=True",)
"""Tests switch themes by command."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterLab]:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    with running(tmp_path_factory.mktemp("lab"), ARTIFACTS / "jupyterlab.log", options=EXPOSED) as lab:
        yield lab


@pytest.fixture
def jupyterlab(server: JupyterLab, request: pytest.FixtureRequest) -> Iterator[JupyterLab]:
    """One server for all, a folder and a layout for each test, and no kernel left behind."""
    yield server.within(request.node.name)
    server.end_kernels()


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
