"""A sample that arrives in parts: what stands out in it is scrolled to once the part that holds it is there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, Request, Route, expect
from real_lab import JupyterLab

from lightning_lab.records import HarnessInfo, Outcome, Rollout, RolloutState, Run, Sample, Segment, Step, Task
from lightning_lab.store import Store, export_run

TOKENS, PEAK = 60_000, 51_234
IN_SIGHT = """flow => [flow.scrollTop, flow.scrollTop + flow.clientHeight].map(at => at / flow.scrollHeight)"""
"""Which part of a sample is seen; its tokens are all of one width."""


def make_run(path: Path, folder: Path) -> None:
    """The KL of the last step spikes, for one token of its only rollout."""
    mask = np.arange(TOKENS) >= 100
    sample = Sample(
        rollout_id="r-1", ids=np.zeros(TOKENS, np.int32), mask=mask,
        logprobs=np.where(mask, -0.5, 0).astype(np.float32), versions=np.where(mask, 1, -1).astype(np.int32),
        segments=(Segment(call_id="c-1", start=100, stop=TOKENS),),
    )  # fmt: skip
    ratio = np.where(mask, 1.01, np.nan).astype(np.float32)
    ratio[PEAK] = 9.0
    with Store(folder / "store.sqlite") as store:
        store.put_run(Run(id="run", kind="fit", state="finished", settings={}, created_at=1.0, finished_at=9.0))
        store.put_rollout(
            Rollout(
                id="r-1", run_id="run", group_id="g", task=Task(id="t", prompt="much"), mode="train", step=5,
                harness=HarnessInfo(name="h", version="v", kind="command"), state=RolloutState.SUCCEEDED,
                outcome=Outcome.COMPLETED, reward=1.0, created_at=1.0, started_at=1.0, finished_at=2.0,
            )
        )  # fmt: skip
        store.put_samples("run", 5, [sample], [])
        store.put_token_stats("run", 5, "r-1", 0, {"ratio": ratio})
        for index in range(6):
            store.put_step(
                Step(
                    run_id="run", index=index, version=index + 1, rollout_ids=("r-1",) if index == 5 else (),
                    metrics={"approx_kl": 0.5 if index == 5 else 0.001}, started_at=index, finished_at=index + 1,
                )
            )  # fmt: skip
        store.flush()
        export_run(store, "run", path, manifest={"run_id": "run"}, vocabulary={0: b"word"})


def is_late(request: Request) -> bool:
    """Whether it asks for tokens after those that arrive first."""
    asked = request.post_data_json or {}
    return bool(asked.get("method") == "tokens" and asked["params"]["from"] > 0)


@pytest.mark.timeout(120)
def test_the_worst_token_is_scrolled_to_once_its_part_has_arrived(
    jupyterlab: JupyterLab, page: Page, tmp_path: Path
) -> None:
    make_run(jupyterlab.root / "large.llab", tmp_path)
    held: list[Route] = []

    def hold_the_second_part(route: Route) -> None:
        if is_late(route.request) and not held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/lightning-lab/run?*", hold_the_second_part)
    page.goto(jupyterlab.page_url("large.llab"))
    panel = page.get_by_test_id("ll-panel")
    panel.get_by_role("button", name="Spike of the KL").click()
    with page.expect_request(is_late):
        panel.locator("[data-testid=ll-grid-row]:not([hidden])").click()
    arrived = panel.locator(".ll-flow")
    expect(arrived).to_have_attribute("data-tokens", re.compile(r"[1-9]\d*"))
    assert int(arrived.get_attribute("data-tokens") or 0) <= PEAK
    flow, card = panel.get_by_test_id("ll-flow"), panel.get_by_test_id("ll-token")
    expect(card).to_have_count(0)

    held[0].continue_()
    expect(arrived).to_have_attribute("data-tokens", str(TOKENS))
    expect(card).to_contain_text(f"token {PEAK:,} · id 0")
    expect(card).to_contain_text("ratio9.0000")
    top, bottom = flow.evaluate(IN_SIGHT)
    assert top < PEAK / TOKENS < bottom
