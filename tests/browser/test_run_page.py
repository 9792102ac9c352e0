"""The Run page's questions, each answered within two clicks, on a stored run in a real browser."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from real_lab import JupyterLab
from test_run_file import open_file, serious

from lightning_lab.store import open_run

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from panel_run import RUN_ID, make_run


@pytest.mark.timeout(240)
def test_every_question_is_answered_within_two_clicks(jupyterlab: JupyterLab, page: Page) -> None:
    store = open_run(make_run(jupyterlab.root / "coder.llab"))
    make_run(jupyterlab.root / "earlier.llab", steps=6, seed=3)
    rollouts = {rollout.id: rollout for rollout in store.rollouts(RUN_ID)}
    panel = open_file(jupyterlab, page)
    grid, rows = panel.get_by_test_id("ll-grid"), panel.locator("[data-testid=ll-grid-row]:not([hidden])")

    # Reward flat: why? The finding lists the groups, and their rollouts say that they have equal rewards.
    panel.get_by_role("button", name="Groups without signal").click()
    expect(panel.get_by_test_id("ll-focus")).to_contain_text("Groups without signal")
    shown = {rollouts[str(id)].group_id for id in rows.evaluate_all("rows => rows.map(row => row.dataset.rolloutId)")}
    assert shown and all(
        len({r.reward for r in rollouts.values() if r.group_id == group} - {None}) == 1 for group in shown
    )
    rows.first.click()
    expect(panel.get_by_test_id("ll-sentence")).to_contain_text("equal")
    panel.get_by_test_id("ll-back").click()
    panel.get_by_test_id("ll-focus").click()

    # What made the step spike? The finding names the rollouts that did; one click more and their tokens are there.
    panel.get_by_role("button", name="Spike of the KL").click()
    expect(grid).to_have_attribute("data-shown", "5")
    spike = {rollouts[str(id)].step for id in rows.evaluate_all("rows => rows.map(row => row.dataset.rolloutId)")}
    assert len(spike) == 1
    rows.first.click()
    expect(panel.locator(".ll-flow")).to_be_visible()
    panel.get_by_test_id("ll-back").click()
    panel.get_by_test_id("ll-focus").click()

    # Rows under headers, by mouse and keyboard.
    panel.get_by_label("Group by").select_option("step")
    headers = panel.get_by_test_id("ll-grid-group")
    mean = [r.reward for r in rollouts.values() if r.step == 7 and r.reward is not None]
    expect(headers.first).to_contain_text(f"step 7  ·  18 rollouts  ·  mean reward {sum(mean) / len(mean):.3f}")
    assert serious(page) == []
    panel.get_by_role("button", name="Fold all").click()
    expect(rows).to_have_count(0)
    grid.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(rows.first).to_have_attribute("aria-level", "2")

    # The timeline without a mouse.
    panel.get_by_role("button", name="Timeline").click()
    panel.get_by_test_id("ll-timeline").focus()
    page.keyboard.press("ArrowDown")
    newest = list(rollouts)[-1]
    expect(panel.get_by_test_id("ll-timeline").get_by_role("status")).to_contain_text(newest)
    page.keyboard.press("Enter")
    expect(panel.get_by_test_id("ll-transcript")).to_be_visible()
    panel.get_by_test_id("ll-back").click()

    # The same task, earlier and now: two steps of this run, then another run.
    panel.get_by_role("button", name="Compare").click()
    tasks = panel.get_by_test_id("ll-compare-tasks")
    expect(tasks.get_by_role("columnheader", name="A · step 0")).to_be_visible()
    panel.get_by_label("Run of B").select_option(label="earlier.llab")
    settings = panel.get_by_test_id("ll-compare-settings")
    expect(settings.get_by_role("row", name="steps 8 6")).to_be_visible()
    expect(panel.get_by_test_id("ll-compare-reward")).to_have_attribute("data-points", "8")
    assert serious(page) == []
    tasks.get_by_role("button").last.click()  # of the other run
    expect(panel.get_by_test_id("ll-transcript")).to_be_visible()
