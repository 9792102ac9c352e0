"""The panel's pages at three widths, light and dark, into docs/images: a stored run, opened without a kernel."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests" / "browser"), str(ROOT / "tests" / "data")]
from panel_run import make_run  # noqa: E402
from real_lab import CHROMIUM, CHROMIUM_FLAGS, JupyterLab, running  # noqa: E402

IMAGES = ROOT / "docs" / "images"
WIDTHS = {600: 1000, 1280: 900, 1920: 1080}
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
ROLLOUT = "r-opencode-0"
MARGIN = 80
"""What JupyterLab itself takes of the width, with its side bar closed."""


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        for theme, name in THEMES.items():
            with tempfile.TemporaryDirectory() as folder:
                settings = {"@jupyterlab/apputils-extension:themes": {"theme": name}}
                with running(Path(folder), Path(folder) / "server.log", settings) as lab:
                    make_run(lab.root / "coder.llab")
                    shutil.copy(ROOT / "tests" / "data" / "agents.llab", lab.root)
                    make_run(lab.root / "earlier.llab", steps=6, n=8, seed=3)
                    for width, height in WIDTHS.items():
                        shoot(browser, lab, theme, width, height)
        browser.close()


def shoot(browser: Browser, lab: JupyterLab, theme: str, width: int, height: int) -> None:
    context = browser.new_context(viewport={"width": width + MARGIN, "height": height})
    page = context.new_page()
    page.goto(f"{lab.page_url('coder.llab')}&reset")
    panel = page.get_by_test_id("ll-panel")
    expect(panel).to_have_attribute("data-status", "file", timeout=60_000)
    page.keyboard.press("Control+b")
    page.wait_for_timeout(1_000)  # the layout's own animation
    picture(page, "run", theme, width)
    panel.get_by_role("button", name="Timeline").click()
    page.wait_for_timeout(1_500)  # its calls are fetched
    picture(page, "timeline", theme, width)
    panel.get_by_role("button", name="Compare").click()
    panel.get_by_label("Run of B").select_option(label="earlier.llab")
    expect(panel.get_by_test_id("ll-compare-settings")).to_be_visible()
    page.wait_for_timeout(500)
    picture(page, "compare", theme, width)
    shoot_rollout(page, lab, theme, width)
    context.close()


def shoot_rollout(page: Page, lab: JupyterLab, theme: str, width: int) -> None:
    """A recorded rollout of a released agent that sends a helper and writes tool arguments anew."""
    page.goto(f"{lab.page_url('agents.llab')}&reset")
    panel = page.get_by_test_id("ll-panel")
    expect(panel).to_have_attribute("data-status", "file", timeout=60_000)
    page.keyboard.press("Control+b")
    page.wait_for_timeout(1_000)
    panel.get_by_role("searchbox", name="Filter rollouts by text").fill(ROLLOUT)
    panel.locator(f"[data-testid=ll-grid-row]:not([hidden])[data-rollout-id='{ROLLOUT}']").click()
    expect(panel.get_by_test_id("ll-transcript")).to_be_visible()
    page.wait_for_timeout(1_500)
    if width > 900:
        panel.get_by_test_id("ll-pin").last.click()
        expect(panel.get_by_test_id("ll-sides")).to_contain_text("In the next prompt")
    panel.locator(".ll-rollout-page").evaluate("page => page.scrollTo(0, 0)")
    page.wait_for_timeout(500)
    picture(page, "rollout", theme, width)


def picture(page: Page, name: str, theme: str, width: int) -> None:
    path = IMAGES / f"{name}-{theme}-{width}.png"
    page.get_by_test_id("ll-panel").screenshot(path=path)
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
