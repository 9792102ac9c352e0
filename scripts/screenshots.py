"""The panel's pages at three widths, light and dark, into docs/images: recorded runs, opened without a kernel.

Run, timeline, rollout and call tree are those of `tests/data/agents.llab`: six released agents, with helpers and
compaction, for two steps. There the model is scripted and the learner's numbers are made up, so what only learning
shows (the Run page of a training, Compare) is of two real trainings: `notebooks/recorded_quickstart.llab` and
`notebooks/recorded_slower.llab`, made by `scripts/record_quickstart.py`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbformat
import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright

from lightning_lab.notebook import load

ROOT = Path(__file__).resolve().parents[1]
expect.set_options(timeout=60_000)
sys.path.append(str(ROOT / "tests" / "browser"))
from real_lab import CHROMIUM, CHROMIUM_FLAGS, JupyterLab, running  # noqa: E402

IMAGES = ROOT / "docs" / "images"
AGENTS = ROOT / "tests" / "data" / "agents.llab"
TRAINED = ROOT / "notebooks" / "recorded_quickstart.llab"
SLOWER = ROOT / "notebooks" / "recorded_slower.llab"
WIDTHS = {600: 1000, 1280: 900, 1920: 1080}
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
MARGIN = 80
"""What JupyterLab itself takes of the width, with its side bar closed."""
EXPOSED = ("--LabApp.expose_app_in_browser=True",)
EXACT, NEAR = 192, 64
"""Colours of a picture: the most frequent ones as they are, the rest (edges of letters) by others near them. That is as
many as one sees, in a third of the bytes."""


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        for theme, name in THEMES.items():
            with tempfile.TemporaryDirectory() as folder:
                settings = {"@jupyterlab/apputils-extension:themes": {"theme": name}}
                with running(Path(folder), Path(folder) / "server.log", settings, EXPOSED) as lab:
                    write_files(lab.root)
                    for width, height in WIDTHS.items():
                        shoot(browser, lab, theme, width, height)
                    lab.end_kernels()
        browser.close()


def write_files(folder: Path) -> None:
    for file in (AGENTS, TRAINED, SLOWER):
        shutil.copy(file, folder)
    (folder / "cut_off.llab").write_bytes(TRAINED.read_bytes()[:5_000])
    run = load(AGENTS)
    cells = [nbformat.v4.new_code_cell(source) for source in ("run", 'run.rollout("r-opencode-0")')]
    for cell, bundle in zip(cells, (load(TRAINED).bundle(), run.rollout("r-opencode-0").bundle()), strict=True):
        cell.outputs = [nbformat.v4.new_output("display_data", data=bundle)]
    empty = [nbformat.v4.new_code_cell("import lightning_lab as ll")]
    for name, content in (("saved", cells), ("empty", empty)):
        notebook = nbformat.v4.new_notebook(cells=content)
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, folder / f"{name}.ipynb")


def shoot(browser: Browser, lab: JupyterLab, theme: str, width: int, height: int) -> None:
    context = browser.new_context(viewport={"width": width + MARGIN, "height": height})
    page = context.new_page()
    page.set_default_timeout(60_000)

    def picture(name: str, of: Locator) -> None:
        path = IMAGES / f"{name}-{theme}-{width}.png"
        of.screenshot(path=path)
        with Image.open(path) as taken:
            with_few_colours(taken.convert("RGB")).save(path, optimize=True)
        print(path.relative_to(ROOT), path.stat().st_size // 1000, "KB", flush=True)

    shoot_agents(page, lab, width, picture)
    shoot_training(page, lab, picture)
    shoot_states(page, lab, picture)
    shoot_saved(page, lab, picture)
    context.close()


def with_few_colours(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image, np.int64)
    codes, places, counts = np.unique(pixels @ (1 << 16, 1 << 8, 1), return_inverse=True, return_counts=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1).astype(np.uint8)
    by_count = np.argsort(-counts)
    palette = colours[by_count[:EXACT]]
    if len(colours) > EXACT:
        rest = Image.fromarray(colours[by_count[EXACT:]][None]).quantize(NEAR, Image.Quantize.MAXCOVERAGE)
        palette = np.concatenate([palette, np.reshape(rest.getpalette(), (-1, 3))])
    distance = np.abs(colours[:, None].astype(int) - palette[None].astype(int)).sum(2)
    small = Image.fromarray(distance.argmin(1).astype(np.uint8)[places].reshape(pixels.shape[:2]), "P")
    small.putpalette(palette.astype(np.uint8).tobytes())
    return small


Picture = Callable[[str, Locator], None]


def open_file(page: Page, lab: JupyterLab, name: str) -> Locator:
    page.goto(f"{lab.page_url(name)}&reset")
    panel = page.get_by_test_id("ll-panel")
    panel.wait_for()
    page.keyboard.press("Control+b")
    page.wait_for_timeout(1_000)  # the layout's own animation
    return panel


def shoot_agents(page: Page, lab: JupyterLab, width: int, picture: Picture) -> None:
    """Recorded rollouts of released agents: one writes tool arguments anew, another sends a helper."""
    panel = open_file(page, lab, AGENTS.name)
    panel.get_by_label("Group by").select_option("harness")
    page.wait_for_timeout(500)
    picture("run", panel)
    panel.get_by_role("button", name="Timeline").click()
    page.wait_for_timeout(1_500)  # its calls are fetched
    picture("timeline", panel)
    panel.get_by_role("button", name="Table").click()
    panel.get_by_label("Group by").select_option("nothing")
    search(panel, "r-opencode-0")
    page.wait_for_timeout(1_500)
    if width > 900:
        panel.get_by_test_id("ll-pin").last.click()
        expect(panel.get_by_test_id("ll-sides")).to_contain_text("In the next prompt")
    panel.locator(".ll-rollout-page").evaluate("page => page.scrollTo(0, 0)")
    page.wait_for_timeout(500)
    picture("rollout", panel)
    panel.get_by_test_id("ll-back").click()
    search(panel, "r-claude-code-0")
    page.wait_for_timeout(1_000)
    tree = panel.locator(".ll-tree")
    tree.scroll_into_view_if_needed()
    picture("tree", tree)


def shoot_training(page: Page, lab: JupyterLab, picture: Picture) -> None:
    """A training, and the same with another learning rate beside it."""
    panel = open_file(page, lab, TRAINED.name)
    expect(panel).to_have_attribute("data-status", "file")
    search_box(panel).fill("train")
    panel.get_by_label("Group by").select_option("step")
    page.wait_for_timeout(500)
    picture("training", panel)
    panel.get_by_role("button", name="Compare").click()
    panel.get_by_label("Run of B").select_option(label=SLOWER.name)
    expect(panel.get_by_test_id("ll-compare-settings")).to_contain_text("learning_rate")
    page.wait_for_timeout(500)
    picture("compare", panel)


def search_box(panel: Locator) -> Locator:
    return panel.get_by_role("searchbox", name="Filter rollouts by text")


def search(panel: Locator, rollout: str) -> None:
    search_box(panel).fill(rollout)
    panel.locator(f"[data-testid=ll-grid-row]:not([hidden])[data-rollout-id='{rollout}']").click()
    expect(panel.get_by_test_id("ll-transcript")).to_be_visible()


def shoot_states(page: Page, lab: JupyterLab, picture: Picture) -> None:
    """Nothing yet, not yet, and never."""
    asked: list[Route] = []
    page.route("**/lightning-lab/run?*", lambda route: asked.append(route))  # not answered
    picture("loading", open_file(page, lab, TRAINED.name))
    for route in asked:
        route.abort()
    page.unroute("**/lightning-lab/run?*")
    panel = open_file(page, lab, "cut_off.llab")
    panel.get_by_role("alert").wait_for()
    picture("error", panel)
    page.goto(f"{lab.page_url('empty.ipynb')}&reset")
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible()
    page.keyboard.press("Control+b")
    size = page.viewport_size or {"width": 0, "height": 0}
    page.set_viewport_size({"width": 2 * size["width"] - MARGIN, "height": size["height"]})  # it opens beside
    page.evaluate("path => void window.jupyterapp.commands.execute('lightning-lab:open-panel', {path})", "empty.ipynb")
    panel.get_by_text("Connected.").wait_for()
    picture("empty", panel)
    page.set_viewport_size(size)


def shoot_saved(page: Page, lab: JupyterLab, picture: Picture) -> None:
    page.goto(f"{lab.page_url('saved.ipynb')}&reset")
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible()
    expect(page.get_by_test_id("ll-output-rollout")).to_have_attribute("data-status", "saved")
    page.keyboard.press("Control+b")
    page.wait_for_timeout(5_000)  # until it is sure that the kernel knows nothing of them
    picture("saved", page.locator(".jp-NotebookPanel"))


if __name__ == "__main__":
    main()
