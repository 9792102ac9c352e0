"""What a busy, restarted or doubly watched kernel does to the panel. Everything is real but the model."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import ARTIFACTS
from playwright.sync_api import Page, expect
from real_lab import JupyterLab
from test_panel import number, run_cell, wait_for, write_notebook

STANDIN = Path(__file__).parents[1] / "python" / "notebook" / "notebook_standin.py"
START = """
from notebook_standin import StandInPolicy, asker, says_yes, tasks
import lightning_lab as ll
lab = ll.Lab(policy=StandInPolicy(delay_s=0.2))
lab.panel()
"""
FIT = "run = ll.Trainer(lab, asker, tasks(), says_yes, n=4, groups=2).fit(steps=500)"
HOLD = """
import ctypes
ctypes.PyDLL(None).sleep(6)  # a call in C that does not release the interpreter
"""
END = """
import json
run.cancel(); run.join(60); lab.store.flush()
from urllib.parse import urlsplit
port = str(urlsplit(lab.url).port)
json.dump({**lab.store.counts(run.id), "port": port}, open("truth.json", "w"))
"""


@pytest.mark.timeout(300)
def test_silence_two_tabs_and_a_restart(jupyterlab: JupyterLab, page: Page) -> None:
    shutil.copy(STANDIN, jupyterlab.root)
    write_notebook(jupyterlab, START, FIT, HOLD, END)
    page.goto(jupyterlab.page_url("run.ipynb"))
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible()

    run_cell(page, 0)
    panel = page.get_by_test_id("ll-panel")
    expect(panel).to_have_attribute("data-status", "live")
    expect(panel.get_by_test_id("ll-header")).to_be_visible()
    expect(page.get_by_test_id("ll-output-run")).to_have_attribute("data-status", "live")

    run_cell(page, 1)
    wait_for(lambda: number(page, "succeeded") > 0, "the first rollouts")
    other = second_tab(page, jupyterlab)
    wait_for(lambda: number(other, "succeeded") > 0, "the second tab to follow")

    run_cell(page, 2)
    for tab in (page, other):
        expect(tab.get_by_test_id("ll-silent").first).to_contain_text("Kernel silent")
    page.screenshot(path=ARTIFACTS / "contracts-silent.png")
    for tab in (page, other):
        expect(tab.get_by_test_id("ll-silent")).to_have_count(0)

    run_cell(page, 3)
    wait_for((jupyterlab.root / "truth.json").exists, "the run to end")
    truth = json.loads((jupyterlab.root / "truth.json").read_text())
    for tab in (page, other):
        for name in ("total", "succeeded", "cancelled", "calls"):
            wait_for(lambda tab=tab, name=name: number(tab, name) == truth[name], f"{name} to equal the store's", 15)

    assert not re.search(rf"[.\w]:{truth['port']}\b", what_the_browser_keeps(page, jupyterlab))
    restart_kernel(page)
    expect(page.get_by_text("The lab is closed.").first).to_be_visible()
    assert number(page, "total") == truth["total"], "what the kernel had to say stays legible"
    run_cell(page, 0)
    wait_for(lambda: number(page, "total") == 0, "the new lab to take the old one's place")


def what_the_browser_keeps(page: Page, lab: JupyterLab) -> str:
    """The saved notebook, the saved layout, and the page's own storage."""
    page.keyboard.press("Control+s")
    wait_for(lambda: "lightning-lab" in (lab.root / "run.ipynb").read_text(), "the notebook to be saved with its views")
    wait_for(lambda: any("lightning-lab" in layout for layout in layouts(lab)), "the layout to be saved")
    storage = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}])")
    return "\n".join([(lab.root / "run.ipynb").read_text(), storage, *layouts(lab)])


def layouts(lab: JupyterLab) -> list[str]:
    return [path.read_text() for path in lab.root.parents[1].glob("workspaces/*")]


def second_tab(page: Page, lab: JupyterLab) -> Page:
    """The same notebook in another tab, its panel opened by the context menu."""
    other = page.context.new_page()
    other.set_default_timeout(60_000)
    other.goto(lab.page_url("run.ipynb"))
    if not other.get_by_test_id("ll-panel").count():
        other.locator(".jp-Notebook .jp-CodeCell").first.click(button="right")
        other.get_by_role("menuitem", name="Open Lightning Lab").click()
    expect(other.get_by_test_id("ll-panel")).to_have_attribute("data-status", "live")
    return other


def restart_kernel(page: Page) -> None:
    page.bring_to_front()
    page.locator(".jp-Notebook .jp-CodeCell").first.locator(".jp-InputPrompt").click()
    page.keyboard.press("0")
    page.keyboard.press("0")
    page.locator(".jp-Dialog .jp-mod-accept").click()
