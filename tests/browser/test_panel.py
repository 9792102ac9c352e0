"""The panel in a real JupyterLab, fed by a real run of a real agent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import nbformat
import pytest
from conftest import ARTIFACTS
from playwright.sync_api import Page, expect
from real_lab import JupyterLab

START = """
from agents import Agent, Runner, function_tool
import lightning_lab as ll
lab = ll.Lab(policy=ll.Policy.torch("quickstart"))
lab.panel()
"""
FIT = """
@function_tool
def calc(expr: str) -> str:
    "Evaluate an arithmetic expression."
    return str(eval(expr, {"__builtins__": {}}))

@ll.harness(preload=["agents"])
async def solver(task):
    return (await Runner.run(Agent(name="solver", tools=[calc]), task.prompt)).final_output

@ll.grader
def exact(task, result):
    return float(str(result.output).strip() == task.answer)

tasks = ll.tasks.reasoning_gym("chain_sum", 200, seed=0)
run = ll.Trainer(lab, solver, tasks, exact, n=4, groups=4).fit(steps=8)
run
"""
BUSY = """
import json, time
while run.state == "running":
    time.sleep(0.1)
lab.store.flush()
counts = lab.store.counts(run.id)
rewards = {r.id: r.reward for r in lab.store.rollouts(run.id)}
json.dump({"counts": counts, "rewards": rewards}, open("truth.json", "w"))
print("run", run.state)
"""


expect.set_options(timeout=60_000)


def write_notebook(lab: JupyterLab, *sources: str, name: str = "run.ipynb") -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source.strip()) for source in sources])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, lab.root / name)


def run_cell(page: Page, index: int) -> None:
    page.locator(".jp-Notebook .jp-CodeCell").nth(index).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")


def number(page: Page, name: str) -> int:
    return int(page.get_by_test_id("ll-panel").get_by_test_id(f"ll-count-{name}").get_attribute("data-value") or 0)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s for: {what}")
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_panel_follows_a_run_through_a_busy_cell_and_a_page_reload(jupyterlab: JupyterLab, page: Page) -> None:
    write_notebook(jupyterlab, START, FIT, BUSY)
    page.goto(jupyterlab.page_url("run.ipynb"))
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible()

    run_cell(page, 0)
    panel = page.get_by_test_id("ll-panel")
    expect(panel).to_be_visible()
    page.screenshot(path=ARTIFACTS / "1-empty.png")

    run_cell(page, 1)
    run_cell(page, 2)
    busy = page.locator(".jp-Notebook .jp-CodeCell").nth(2).locator(".jp-InputPrompt")
    expect(busy).to_have_text("[*]:")
    wait_for(lambda: number(page, "succeeded") >= 4, "the grid to fill while the cell is busy")
    assert panel.get_by_test_id("ll-grid-row").count() > 0
    assert busy.inner_text() == "[*]:", "the run ended before the cell was seen busy"
    page.screenshot(path=ARTIFACTS / "2-busy.png")

    page.reload()
    panel.wait_for()
    wait_for(lambda: number(page, "succeeded") > 0, "the reloaded page to hear from the busy kernel")
    seen = number(page, "succeeded")
    wait_for(lambda: number(page, "succeeded") > seen, "the counts to go on increasing after the reload")
    assert not (jupyterlab.root / "truth.json").exists(), "the cell ended before the reload was checked"
    page.screenshot(path=ARTIFACTS / "3-reloaded.png")

    wait_for((jupyterlab.root / "truth.json").exists, "the run to end", seconds=150)
    truth = json.loads((jupyterlab.root / "truth.json").read_text())
    for name in ("total", "queuing", "running", "succeeded", "failed", "cancelled", "calls"):
        wait_for(lambda name=name: number(page, name) == truth["counts"][name], f"{name} to equal the store's", 10)
    wait_for(lambda: panel.get_attribute("data-rows") == str(truth["counts"]["total"]), "all rows to arrive", 15)
    page.screenshot(path=ARTIFACTS / "4-finished.png")

    row = panel.get_by_test_id("ll-grid-row").first
    rollout = row.get_attribute("data-rollout-id")
    row.click()
    expect(panel.get_by_test_id("ll-transcript")).to_contain_text("arithmetic problem")
    expect(panel.get_by_test_id("ll-verdict")).to_contain_text(f"{truth['rewards'][rollout]:g}")
    page.screenshot(path=ARTIFACTS / "5-rollout.png")
