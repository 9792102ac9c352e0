"""The call tree's part of `benchmarks/panel.py`: one rollout of 20,000 calls in 1,001 threads, opened from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from playwright.sync_api import Page, expect
from real_lab import JupyterLab

from lightning_lab.records import (
    Call,
    HarnessInfo,
    Message,
    Outcome,
    Rollout,
    RolloutState,
    Run,
    Sampling,
    Step,
    Task,
)  # fmt: skip
from lightning_lab.store import Store, export_run

CALLS, TURN = 20_000, 10
"""After every `TURN` calls of the main thread a helper makes as many."""
FILE = "tree.llab"
_PAN = """frames => new Promise(done => {
  const node = document.querySelector('.ll-tree-canvas');
  let n = 0; const began = performance.now();
  const next = () => {
    const delta = {deltaX: n % 60 < 30 ? 60 : -45, deltaY: n % 40 < 20 ? 30 : -20, bubbles: true, cancelable: true};
    node.dispatchEvent(new WheelEvent('wheel', delta));
    if (++n < frames) requestAnimationFrame(next); else done(1000 * n / (performance.now() - began));
  };
  requestAnimationFrame(next);
})"""
_LAYOUT = "() => Math.max(...performance.getEntriesByName('lightning-lab:tree-layout').map(entry => entry.duration))"


def measure_tree(page: Page, lab: JupyterLab, empty_fps: float, frames: int) -> dict[str, float]:
    """``tree_layout_ms``, and ``tree_fps_ratio``: the lower of panning where calls are legible and seeing them all."""
    page.goto(f"{lab.page_url(FILE)}&reset")
    expect(page.get_by_test_id("ll-panel")).to_have_attribute("data-status", "file", timeout=120_000)
    page.get_by_test_id("ll-grid-row").first.click()
    tree = page.get_by_test_id("ll-tree")
    expect(tree).to_have_attribute("data-calls", str(CALLS), timeout=120_000)
    page.wait_for_timeout(2_000)
    near = page.evaluate(_PAN, frames)
    tree.focus()
    page.keyboard.press("0")
    page.keyboard.press("+")
    far = page.evaluate(_PAN, frames)
    return {"tree_layout_ms": page.evaluate(_LAYOUT), "tree_fps_ratio": min(near, far) / empty_fps}


def put_one_rollout(store: Store) -> None:
    """A finished run of one rollout, ``r-1``; what that consists of is the caller's."""
    store.put_run(Run(id="run", kind="fit", state="finished", settings={}, created_at=1.0, finished_at=2.0))
    store.put_rollout(
        Rollout(
            id="r-1", run_id="run", group_id="g", task=Task(id="t", prompt="much"), mode="train", step=0,
            harness=HarnessInfo(name="h", version="v", kind="command"), state=RolloutState.SUCCEEDED,
            outcome=Outcome.COMPLETED, reward=1.0, created_at=1.0, started_at=1.0, finished_at=2.0,
        )
    )  # fmt: skip


def make_tree_run(lab: JupyterLab, folder: Path) -> None:
    with Store(folder / "tree.sqlite") as store:
        put_one_rollout(store)
        last: dict[str, str] = {}
        for ordinal in range(CALLS):
            block, place = divmod(ordinal, 2 * TURN)
            thread = "main" if place < TURN else f"helper-{block}"
            store.put_call(_call(ordinal, thread, last.get(thread)))
            last[thread] = f"c-{ordinal}"
        store.put_samples("run", 0, [], [])
        store.put_step(
            Step(run_id="run", index=0, version=1, rollout_ids=("r-1",), metrics={}, started_at=1.0, finished_at=2.0)
        )
        store.flush()
        export_run(store, "run", lab.root / FILE, manifest={"run_id": "run"})


def _call(ordinal: int, thread: str, parent: str | None) -> Call:
    ids = np.array([ordinal % 4_000, 7], np.int32)
    return Call(
        id=f"c-{ordinal}", rollout_id="r-1", attempt=1, ordinal=ordinal, request_id=f"q-{ordinal}", protocol="chat",
        model="m", messages=(Message(role="user", content=f"go on {ordinal}"),), tools=(),
        reply=Message(role="assistant", content="done"), prompt_ids=ids, sampled_ids=ids,
        logprobs=np.zeros(2, np.float32), versions=np.zeros(2, np.int32), finish_reason="stop", asked={},
        used=Sampling(), arrived_at=1.0, held_s=0.0, started_at=1.0, finished_at=1.5, delivered=True, thread=thread,
        parent_id=parent, kind="main" if thread == "main" else "sub_agent",
    )  # fmt: skip
