"""The Run page's questions, each answered within two clicks, on a stored run in a real browser."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from real_lab import JupyterLab
from test_run_file import open_file, serious

from lightning_lab.store import Store, open_run

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from panel_run import RUN_ID, make_run

COUNT_CLICKS = (
    "() => { window.clicks = 0; addEventListener('click', event => { window.clicks += event.isTrusted; }, true); }"
)


@contextmanager
def clicks(page: Page, most: int) -> Iterator[None]:
    """What is asserted within is reached with so few clicks, counted by the page itself."""
    before = page.evaluate("window.clicks")
    yield
    assert page.evaluate("window.clicks") - before <= most


class Worst(NamedTuple):
    token: int
    id: int
    ratio: float


def largest_part(store: Store, rollout_id: str) -> Worst:
    """The token with the largest r − 1 − ln r."""
    parts = []
    for sample, stats in zip(store.samples(rollout_id), store.token_stats(rollout_id), strict=True):
        ratio = stats["ratio"].astype(np.float64)
        token = int(np.nanargmax(ratio - 1 - np.log(ratio)))
        parts.append((float((ratio - 1 - np.log(ratio))[token]), Worst(token, sample.ids[token], ratio[token])))
    return max(parts)[1]


@pytest.mark.timeout(240)
def test_every_question_is_answered_within_two_clicks(jupyterlab: JupyterLab, page: Page) -> None:
    store = open_run(make_run(jupyterlab.root / "coder.llab"))
    make_run(jupyterlab.root / "earlier.llab", steps=6, seed=3)
    rollouts = {rollout.id: rollout for rollout in store.rollouts(RUN_ID)}
    panel = open_file(jupyterlab, page)
    grid, rows = panel.get_by_test_id("ll-grid"), panel.locator("[data-testid=ll-grid-row]:not([hidden])")

    page.evaluate(COUNT_CLICKS)

    # Reward flat: why? The finding lists the groups, and their rollouts say that they have equal rewards.
    with clicks(page, 2):
        panel.get_by_role("button", name="Groups without signal").click()
        expect(panel.get_by_test_id("ll-focus")).to_contain_text("Groups without signal")
        ids = rows.evaluate_all("rows => rows.map(row => row.dataset.rolloutId)")
        shown = {rollouts[str(id)].group_id for id in ids}
        assert shown and all(
            len({r.reward for r in rollouts.values() if r.group_id == group} - {None}) == 1 for group in shown
        )
        rows.first.click()
        expect(panel.get_by_test_id("ll-sentence")).to_contain_text("equal")
    panel.get_by_test_id("ll-back").click()
    panel.get_by_test_id("ll-focus").click()

    # What made the step spike? The finding names the rollouts that did. Which tokens drove it? One click more: they
    # are coloured by their part of the KL, the largest is selected and in sight.
    with clicks(page, 2):
        panel.get_by_role("button", name="Spike of the KL").click()
        expect(grid).to_have_attribute("data-shown", "5")
        made_it = [rollouts[str(id)] for id in rows.evaluate_all("rows => rows.map(row => row.dataset.rolloutId)")]
        assert len({rollout.step for rollout in made_it}) == 1
        rows.first.click()
        expect(panel.get_by_role("radio", name="KL")).to_be_checked()
        worst = largest_part(store, made_it[0].id)
        expect(panel.get_by_test_id("ll-token")).to_contain_text(f"token {worst.token} · id {worst.id}")
        expect(panel.get_by_test_id("ll-token")).to_contain_text(f"ratio{worst.ratio:.4f}")
    panel.get_by_test_id("ll-back").click()
    panel.get_by_test_id("ll-focus").click()

    # Steps dragged over on a chart are those whose rollouts are listed.
    over = panel.get_by_test_id("ll-reward-chart").locator(".u-over").bounding_box() or pytest.fail("no chart")
    y = over["y"] + over["height"] / 2
    page.mouse.move(over["x"] + 0.4 * over["width"], y)
    page.mouse.down()
    page.mouse.move(over["x"] + 0.75 * over["width"], y, steps=4)
    page.mouse.up()
    expect(panel.get_by_test_id("ll-focus")).to_contain_text("steps 3 to 5")
    expect(grid).to_have_attribute("data-shown", str(sum(r.step in (3, 4, 5) for r in rollouts.values())))
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
    panel.get_by_role("button", name="Table").click()

    # What did this rollout do, and why its reward? The last thing on its page is the grader's verdict.
    with clicks(page, 2):
        rows.nth(1).click()
        told = rollouts[str(panel.get_by_test_id("ll-rollout-page").get_attribute("data-rollout-id"))]
        expect(panel.get_by_test_id("ll-verdict")).to_contain_text(told.verdict)
    panel.get_by_test_id("ll-back").click()

    # The same task, earlier and now: two steps of this run, then another run.
    tasks = panel.get_by_test_id("ll-compare-tasks")
    with clicks(page, 2):
        panel.get_by_role("button", name="Compare").click()
        expect(tasks.get_by_role("columnheader", name="A · step 0")).to_be_visible()
    panel.get_by_label("Run of B").select_option(label="earlier.llab")
    settings = panel.get_by_test_id("ll-compare-settings")
    expect(settings.get_by_role("row", name="steps 8 6")).to_be_visible()
    expect(panel.get_by_test_id("ll-compare-reward")).to_have_attribute("data-points", "8")
    assert serious(page) == []
    tasks.get_by_role("button").last.click()  # of the other run
    expect(panel.get_by_test_id("ll-transcript")).to_be_visible()
