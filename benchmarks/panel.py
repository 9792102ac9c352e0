"""How quick the panel is, in a headless Chromium; the numbers come from the browser itself. Prints one JSON object.

    python benchmarks/panel.py --json

A real JupyterLab, a real kernel that pushes a made-up lab over the real bridge (`benchmarks/panel_lab.py`), and a
stored run with one sample of 100,000 tokens and 100,000 steps.

* `first_paint_ms`: from the command "Open Lightning Lab" to the first frame in which the panel's page is painted.
* `event_to_pixel_ms`: median over 100 events/s, from an event in the kernel to the frame that shows its number.
* `after_silence_ms`: from the end of a C call that held the GIL for 5 s to the frame in which the counts are the lab's.
* `rows_load_ms`: 100,000 rollouts, from the moment the lab has them until the panel's table has all.
* `grid_fps_ratio`: frames per second while the grid of 100,000 rows scrolls / those of an empty page in the same run.
* `chart_ms`, `strip_ms`: script time a frame (Chromium's own counter) with four charts of 100,000 points under a moving
  cursor, and while 100,000 tokens are scrolled.
* `tree_layout_ms`, `tree_fps_ratio`: 20,000 calls laid out, and frames per second while their picture is panned / those
  of an empty page (`benchmarks/panel_tree.py`).
* `bundle_gzip_kb`: all script and styles of the extension, gzipped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from playwright.sync_api import Browser, CDPSession, Page, expect, sync_playwright

from lightning_lab.records import Sample, Segment, Step
from lightning_lab.store import Store, export_run

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "browser"))
from panel_tree import make_tree_run, measure_tree, put_one_rollout  # noqa: E402
from real_lab import CHROMIUM, CHROMIUM_FLAGS, JupyterLab, running  # noqa: E402

TOKENS = STEPS = ROWS = 100_000
FRAMES = 120
FPS = """frames => new Promise(done => {
  let n = 0; const began = performance.now();
  const next = () => ++n < frames ? requestAnimationFrame(next) : done(1000 * n / (performance.now() - began));
  requestAnimationFrame(next);
})"""
SCROLL = """([selector, by, frames]) => new Promise(done => {
  const node = document.querySelector(selector);
  let n = 0; const began = performance.now();
  const next = () => {
    node.scrollTop += by;
    if (++n < frames) requestAnimationFrame(next); else done(1000 * n / (performance.now() - began));
  };
  requestAnimationFrame(next);
})"""
HOVER = """frames => new Promise(done => {
  const charts = [...document.querySelectorAll('.ll-chart .u-over')].slice(0, 4);
  let n = 0;
  const next = () => {
    const over = charts[0], box = over.getBoundingClientRect();
    const at = {bubbles: true, clientX: box.left + (n * 7) % box.width, clientY: box.top + 20};
    over.dispatchEvent(new MouseEvent('mousemove', at));
    if (++n < frames) requestAnimationFrame(next); else done(charts.length);
  };
  requestAnimationFrame(next);
})"""
OPEN = """path => new Promise(async done => {
  const began = performance.now();
  window.jupyterapp.commands.execute('lightning-lab:open-panel', {path});
  const look = () => document.querySelector('[data-testid=ll-panel]')
    ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - began))) : requestAnimationFrame(look);
  look();
})"""
WATCH = """() => {
  window.seen = [];
  const look = () => {
    const node = document.querySelector('[data-testid=ll-count-total]');
    const value = Number(node?.dataset.value ?? 0), last = window.seen[window.seen.length - 1];
    if (!last || last[0] !== value) window.seen.push([value, Date.now() / 1000]);
    window.watching = requestAnimationFrame(look);
  };
  look();
}"""
SEEN = "() => { cancelAnimationFrame(window.watching); return window.seen; }"
ALL_ROWS = """rows => new Promise(done => {
  const look = () => Number(document.querySelector('[data-testid=ll-panel]')?.dataset.rows) >= rows
    ? done(Date.now() / 1000) : requestAnimationFrame(look);
  look();
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        log, options = Path(folder) / "server.log", ["--LabApp.expose_app_in_browser=True"]
        with running(Path(folder), log, options=options) as lab:
            make_large_run(lab.root / "large.llab", Path(folder))
            make_tree_run(lab, Path(folder))
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
            measured = {**measure_live(browser, lab), **measure_file(browser, lab)}
            browser.close()
    measured["bundle_gzip_kb"] = bundle_kb()
    print(json.dumps({name: round(value, 3) for name, value in measured.items()}))


def measure_live(browser: Browser, lab: JupyterLab) -> dict[str, float]:
    sources = [
        "import panel_lab; lab = panel_lab.start()",
        "lab.count(seconds=6)",
        "lab.fall_silent(5, events=50)",
        f"lab.grow({ROWS})",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, lab.root / "bench.ipynb")
    (lab.root / "panel_lab.py").write_text((ROOT / "benchmarks" / "panel_lab.py").read_text())
    page = new_page(browser)
    empty = page.evaluate(FPS, FRAMES)
    page.goto(f"{lab.page_url('bench.ipynb')}&reset")
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=90_000)
    run_cell(page, 0)
    page.wait_for_timeout(3_000)
    first_paint = page.evaluate(OPEN, "bench.ipynb")
    expect(page.get_by_test_id("ll-panel")).to_have_attribute("data-status", "live", timeout=60_000)
    page.evaluate(WATCH)
    run_cell(page, 1)
    events = read_when_there(page, lab.root / "events.json")
    run_cell(page, 2)
    ended = float(read_when_there(page, lab.root / "silence.json"))
    expect(page.get_by_test_id("ll-count-total")).to_have_attribute("data-value", str(len(events) + 50))
    seen = page.evaluate(SEEN)
    run_cell(page, 3)
    loaded = page.evaluate(ALL_ROWS, ROWS)
    began = float(read_when_there(page, lab.root / "grown.json"))
    page.wait_for_timeout(8_000)  # the frames repeat what was asked for already
    fps = page.evaluate(SCROLL, [".ll-grid", 260, FRAMES])
    page.context.close()
    return {
        "first_paint_ms": first_paint,
        "event_to_pixel_ms": event_to_pixel(events, seen),
        "after_silence_ms": 1000 * max(0.0, seen[-1][1] - ended),
        "rows_load_ms": 1000 * (loaded - began),
        "grid_fps_ratio": fps / empty,
    }


def event_to_pixel(events: list[float], seen: list[tuple[int, float]]) -> float:
    """``events[i]``: when the count became i + 1; ``seen``: counts with the time of the frame that showed them."""
    latencies = []
    place = 0
    for number, at in enumerate(events, start=1):
        while place < len(seen) and seen[place][0] < number:
            place += 1
        if place < len(seen):
            latencies.append(seen[place][1] - at)
    return 1000 * statistics.median(latencies)


def measure_file(browser: Browser, lab: JupyterLab) -> dict[str, float]:
    page = new_page(browser)
    page.goto(f"{lab.page_url('large.llab')}&reset")
    panel = page.get_by_test_id("ll-panel")
    expect(panel).to_have_attribute("data-status", "file", timeout=120_000)
    expect(page.get_by_test_id("ll-reward-chart")).to_have_attribute("data-points", str(STEPS), timeout=60_000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    chart = script_per_frame(session, lambda: page.evaluate(HOVER, FRAMES))
    page.get_by_test_id("ll-grid-row").first.click()
    expect(page.locator(".ll-flow")).to_have_attribute("data-tokens", str(TOKENS), timeout=60_000)
    page.wait_for_timeout(1_000)
    strip = script_per_frame(session, lambda: page.evaluate(SCROLL, [".ll-flow-scroller", 90, FRAMES]))
    page.goto("about:blank")
    tree = measure_tree(page, lab, page.evaluate(FPS, FRAMES), FRAMES)
    page.context.close()
    return {"chart_ms": chart, "strip_ms": strip, **tree}


def script_per_frame(session: CDPSession, act: Any) -> float:
    def script() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(item["value"] for item in metrics if item["name"] == "ScriptDuration"))

    before = script()
    act()
    return 1000 * (script() - before) / FRAMES


def new_page(browser: Browser) -> Page:
    page = browser.new_context(viewport={"width": 1600, "height": 1000}).new_page()
    page.set_default_timeout(90_000)
    return page


def run_cell(page: Page, index: int) -> None:
    page.locator(".jp-Notebook .jp-CodeCell").nth(index).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")


def read_when_there(page: Page, path: Path) -> Any:
    for _ in range(600):
        if path.exists():
            return json.loads(path.read_text())
        page.wait_for_timeout(100)
    raise TimeoutError(f"the kernel did not write {path.name} within a minute")


def make_large_run(path: Path, folder: Path) -> None:
    """One rollout with one sample of `TOKENS` tokens, and `STEPS` steps."""
    rng = np.random.default_rng(0)
    mask = np.arange(TOKENS) % 10 > 3
    ids = rng.integers(0, 4_000, TOKENS).astype(np.int32)
    starts = np.flatnonzero(np.diff(mask.astype(int), prepend=0) == 1)
    segments = tuple(Segment(call_id=f"c-{i}", start=int(s), stop=int(s) + 6) for i, s in enumerate(starts[::40]))
    logprobs = np.where(mask, -rng.exponential(0.5, TOKENS), 0).astype(np.float32)
    sample = Sample(
        rollout_id="r-1", ids=ids, mask=mask, logprobs=logprobs,
        versions=np.where(mask, 1, -1).astype(np.int32), segments=segments,
    )  # fmt: skip
    with Store(folder / "large.sqlite") as store:
        put_one_rollout(store)
        store.put_samples("run", 0, [sample], [])
        for index in range(STEPS):
            numbers = {"reward": rng.random(), "entropy": rng.random(), "no_signal": 1.0, "approx_kl": rng.random()}
            store.put_step(
                Step(
                    run_id="run", index=index, version=index + 1, rollout_ids=(), metrics=numbers, started_at=index,
                    finished_at=index + 1,
                )
            )  # fmt: skip
        store.flush()
        words = {id: f" w{id:x}".encode() for id in range(4_000)}
        export_run(store, "run", path, manifest={"run_id": "run"}, vocabulary=words)


def bundle_kb() -> float:
    built = ROOT / "lightning_lab" / "labextension" / "static"
    files = [path for path in built.rglob("*") if path.suffix in {".js", ".css"}]
    return sum(len(gzip.compress(path.read_bytes())) for path in files) / 1000


if __name__ == "__main__":
    main()
