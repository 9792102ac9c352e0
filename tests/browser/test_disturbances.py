"""What people, networks and other notebooks do to a panel while a run goes on. Everything is real but the model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from cut_proxy import CutProxy
from playwright.sync_api import Locator, Page, WebSocket, expect
from real_lab import JupyterLab
from test_contracts import END, FIT, STANDIN, START
from test_panel import number, run_cell, wait_for, write_notebook

COMPUTE = """
import time
until = time.time() + 5
while time.time() < until:  # pure Python: other threads get their turns
    sum(range(1000))
"""
WAIT = """
while True:
    time.sleep(0.1)
"""
BURST = """
import json, time
from dataclasses import replace
run.join(60)
one, began = lab.store.rollouts(run.id)[0], time.time()
for i in range(10_000):
    lab.store.put_rollout(replace(one, id=f"r-burst-{i:05d}", created_at=began + i / 1e4))
    if i % 500 == 499:
        time.sleep(max(0, began + 3 * i / 10_000 - time.time()))
lab.store.flush()
json.dump(lab.store.counts(run.id), open("truth.json", "w"))
"""
JOIN = """
import json
run.join(60); lab.store.flush()
json.dump(lab.store.counts(run.id), open("truth.json", "w"))
"""
SHORT = "run = ll.Trainer(lab, asker, tasks(), says_yes, n=4, groups=2).fit(steps=2)"


@pytest.fixture
def proxy(jupyterlab: JupyterLab) -> Iterator[CutProxy]:
    made = CutProxy(urlsplit(jupyterlab.url).port or 0)
    yield made
    made.close()


def start(page: Page, lab: JupyterLab, *cells: str) -> Locator:
    """A notebook whose first cell opens the lab and its panel."""
    shutil.copy(STANDIN, lab.root)
    write_notebook(lab, START, *cells)
    page.goto(lab.page_url("run.ipynb"))
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible()
    run_cell(page, 0)
    panel = page.get_by_test_id("ll-panel")
    expect(panel).to_have_attribute("data-status", "live")
    return panel


def goes_on(page: Page, what: str) -> None:
    before = number(page, "succeeded")
    wait_for(lambda: number(page, "succeeded") > before, what)


def equals_the_store(page: Page, truth: Mapping[str, int]) -> None:
    for name in ("total", "succeeded", "failed", "cancelled", "calls"):
        wait_for(lambda name=name: number(page, name) == truth[name], f"{name} to equal the store's", 15)


def truth_of(lab: JupyterLab) -> dict[str, int]:
    wait_for((lab.root / "truth.json").exists, "the run to end")
    return dict(json.loads((lab.root / "truth.json").read_text()))


@pytest.mark.timeout(300)
def test_a_computing_cell_an_interrupt_and_a_closed_notebook(jupyterlab: JupyterLab, page: Page) -> None:
    start(page, jupyterlab, FIT, COMPUTE, WAIT)
    run_cell(page, 1)
    goes_on(page, "the first rollouts")
    run_cell(page, 2)
    busy = page.locator(".jp-Notebook .jp-CodeCell").nth(2).locator(".jp-InputPrompt")
    expect(busy).to_have_text("[*]:")
    goes_on(page, "rollouts to end while Python computes")
    expect(busy).not_to_have_text("[*]:")

    run_cell(page, 3)
    waiting = page.locator(".jp-Notebook .jp-CodeCell").nth(3)
    expect(waiting.locator(".jp-InputPrompt")).to_have_text("[*]:")
    page.get_by_role("button", name="Interrupt the kernel").click()
    expect(waiting).to_contain_text("KeyboardInterrupt")
    goes_on(page, "the run to go on after an interrupt of what waited beside it")

    page.get_by_role("tab", name="run.ipynb").locator(".jp-icon-hover").click()
    page.get_by_role("button", name="Discard changes to file").click()
    expect(page.locator(".jp-NotebookPanel")).to_have_count(0)
    goes_on(page, "the panel to follow the run without its notebook")
    expect(page.get_by_test_id("ll-panel")).to_have_attribute("data-status", "live")


@pytest.mark.timeout(300)
def test_two_notebooks_have_two_labs(jupyterlab: JupyterLab, page: Page) -> None:
    panel = start(page, jupyterlab, FIT, END)
    run_cell(page, 1)
    goes_on(page, "the first lab's rollouts")
    first = panel.get_attribute("data-lab")
    # Stuck on what? Said without a click.
    expect(panel.get_by_test_id("ll-oldest")).to_contain_text("oldest")
    write_notebook(jupyterlab, START, SHORT, JOIN, SHORT, name="other.ipynb")
    other = page.context.new_page()
    other.set_default_timeout(60_000)
    other.goto(replace(jupyterlab, folder="").page_url(f"{jupyterlab.folder}/other.ipynb"))
    expect(other.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible()
    run_cell(other, 0)
    second = other.get_by_test_id("ll-panel")
    expect(second).to_have_attribute("data-status", "live")
    assert second.get_attribute("data-lab") not in ("", first)
    run_cell(other, 1)
    run_cell(other, 2)
    truth = truth_of(jupyterlab)
    assert truth["total"] == 16
    equals_the_store(other, truth)
    goes_on(page, "the first lab to go on by itself")
    assert number(page, "total") > 16
    run_cell(other, 3)
    compare_with_the_earlier_run(other, truth["total"])


def compare_with_the_earlier_run(page: Page, rollouts: int) -> None:
    """A lab's earlier run beside the one on show, read from the live kernel; its rollouts open."""
    panel = page.get_by_test_id("ll-panel")
    wait_for(lambda: number(page, "total") == number(page, "succeeded") == rollouts, "the second run to end")
    panel.get_by_role("button", name="Compare").click()
    earlier = panel.get_by_label("Run of B").locator("option", has_text=f"{rollouts} rollouts")
    expect(earlier).to_have_count(1)
    panel.get_by_label("Run of B").select_option(label=earlier.inner_text())
    expect(panel.get_by_test_id("ll-compare-reward")).to_have_attribute("data-points", "2")
    panel.get_by_test_id("ll-compare-tasks").get_by_role("button").last.click()
    expect(panel.get_by_test_id("ll-transcript").locator("[data-call-id]")).not_to_have_count(0)


@pytest.mark.timeout(300)
def test_ten_thousand_rollouts_in_three_seconds(jupyterlab: JupyterLab, page: Page) -> None:
    panel = start(page, jupyterlab, SHORT, BURST)
    run_cell(page, 1)
    run_cell(page, 2)
    truth = truth_of(jupyterlab)
    assert truth["total"] == 10_016
    equals_the_store(page, truth)
    expect(panel).to_have_attribute("data-rows", str(truth["total"]))


@pytest.mark.timeout(300)
def test_a_broken_connection_is_told_and_healed(jupyterlab: JupyterLab, page: Page, proxy: CutProxy) -> None:
    address = urlsplit(jupyterlab.url)._replace(netloc=f"127.0.0.1:{proxy.port}").geturl()
    panel = start(page, replace(jupyterlab, url=address), FIT, END)
    run_cell(page, 1)
    goes_on(page, "the first rollouts")
    proxy.cut()
    expect(panel).to_have_attribute("data-status", "disconnected")
    proxy.mend()
    expect(panel).to_have_attribute("data-status", "live")
    goes_on(page, "counts to go on after the connection broke")
    page.bring_to_front()
    for name in ("Cannot Open Source", "Server Connection Error"):
        if page.get_by_role("dialog", name=name).count():
            page.keyboard.press("Escape")
    run_cell(page, 2)
    equals_the_store(page, truth_of(jupyterlab))


@pytest.mark.timeout(300)
def test_a_hidden_panel_asks_for_nothing(jupyterlab: JupyterLab, page: Page) -> None:
    sent: list[bytes] = []

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", lambda frame: sent.append(frame if isinstance(frame, bytes) else frame.encode()))

    page.on("websocket", listen)
    panel = start(page, jupyterlab, FIT, END)
    run_cell(page, 1)
    goes_on(page, "the first rollouts")
    panel.get_by_test_id("ll-grid-row").first.click()
    expect(panel.get_by_test_id("ll-transcript")).to_be_visible()
    assert [frame for frame in sent if b"comm_msg" in frame], "a visible panel asks"
    page.evaluate("() => void window.jupyterapp.commands.execute('launcher:create')")
    expect(panel).not_to_be_visible()
    page.wait_for_timeout(1_500)  # what was asked before may still be on its way
    sent.clear()
    page.wait_for_timeout(4_000)
    assert not [frame for frame in sent if b"comm_" in frame]
    page.evaluate("""() => {
      const panel = document.querySelector('.ll-panel');
      window.jupyterapp.shell.activateById(panel.id);
    }""")
    expect(panel).to_be_visible()
    panel.get_by_test_id("ll-back").click()
    run_cell(page, 2)
    equals_the_store(page, truth_of(jupyterlab))


SOAK = """
import time
from dataclasses import replace
run.join(60)
one = lab.store.rollouts(run.id)[0]
ids = [f"r-soak-{i:04d}" for i in range(2_000)]
until, n = time.time() + 200, 0
while time.time() < until:
    lab.store.put_event("phase", run.id, data={"phase": "collecting", "step": n % 50, "version": n})
    for id in ids[n % 20 :: 20]:
        lab.store.put_rollout(replace(one, id=id, state="running", outcome=None, reward=None, finished_at=None))
    n += 1
    time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_half_an_hour_of_changes_leaves_the_pages_memory_bounded(jupyterlab: JupyterLab, page: Page) -> None:
    """Scaled: as many frames and changed rows as a lively run makes in half an hour, in about three minutes."""
    panel = start(page, jupyterlab, SHORT, SOAK)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def heap() -> float:
        session.send("HeapProfiler.collectGarbage")
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(item["value"] for item in metrics if item["name"] == "JSHeapUsedSize")) / 1e6

    run_cell(page, 1)
    run_cell(page, 2)
    wait_for(lambda: number(page, "total") >= 2_016, "every rollout to be there")
    sizes = []
    for _ in range(8):
        panel.get_by_test_id("ll-grid-row").first.click()
        expect(panel.get_by_test_id("ll-rollout-page")).to_be_visible()
        page.wait_for_timeout(10_000)
        panel.get_by_test_id("ll-back").click()
        page.wait_for_timeout(10_000)
        sizes.append(heap())
    print("heap, MB:", [round(size, 1) for size in sizes])
    assert sizes[-1] < sizes[1] * 1.15 + 5
