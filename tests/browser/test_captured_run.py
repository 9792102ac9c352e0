"""Six released agents, recorded (`tests/data/record_agents.py`): what the panel shows equals what the store holds."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest
from conftest import ARTIFACTS
from playwright.sync_api import Locator, Page, expect
from real_lab import JupyterLab
from test_run_file import open_rollout, serious

from lightning_lab.notebook import load
from lightning_lab.records import BreakCause, Call
from lightning_lab.samples import explain
from lightning_lab.store import Store, open_run

RUN = Path(__file__).parents[1] / "data" / "agents.llab"
CUT = {
    "mini-swe-agent": [],
    "claude-code": ["new_thread"],
    "codex": ["tools_changed", "compacted"],
    "opencode": ["new_thread", "new_thread", "tool_args", "tool_args", "tool_args", "tool_args"],
    "openai-agents": [],
    "langchain": ["reasoning_dropped", "tool_args", "tool_args"],
}
"""What breaks the conversation of each agent: known of the requests that were recorded."""
THEMES = ("JupyterLab Light", "JupyterLab Dark")


def open_run_file(lab: JupyterLab, page: Page) -> Locator:
    shutil.copy(RUN, lab.root)
    page.goto(lab.page_url("agents.llab"))
    panel = page.get_by_test_id("ll-panel")
    expect(panel).to_have_attribute("data-status", "file")
    return panel


@pytest.mark.timeout(300)
def test_every_agent_is_shown_as_it_was_recorded(jupyterlab: JupyterLab, page: Page) -> None:
    store = open_run(RUN)
    try:
        panel = open_run_file(jupyterlab, page)
        check_break_problems(panel, store)
        for name, causes in CUT.items():
            open_rollout(panel, store.rollout(f"r-{name}-0"))
            check_calls(panel, store.calls(f"r-{name}-0"))
            check_cuts(panel, store, f"r-{name}-0", causes)
        check_weights(panel, store, "r-langchain-0")
        check_tree(page, panel, store, "r-claude-code-0")
    finally:
        store.close()


def check_break_problems(panel: Locator, store: Store) -> None:
    """This run's learner counted no breaks; they are found all the same."""
    found = Counter(str(one.cause) for one in store.breaks(run_id=store.runs()[0].id))
    for cause, count in found.items():
        problem = panel.get_by_role("button", name=f"Breaks: {cause.replace('_', ' ')}")
        expect(problem.locator(".ll-problem-count")).to_have_text(str(count))


def check_calls(panel: Locator, calls: Sequence[Call]) -> None:
    shown = panel.locator("[data-call-id]")
    expect(shown).to_have_count(len(calls))
    told = shown.evaluate_all("all => all.map(one => [one.dataset.callId, one.dataset.kind])")
    assert told == [[call.id, call.kind] for call in calls]
    depth = shown.evaluate_all("all => all.map(one => Number(one.dataset.depth))")
    assert [at > 0 for at in depth] == [call.kind == "sub_agent" for call in calls]
    for at, call in enumerate(calls):
        facts = f"{len(call.prompt_ids):,} prompt + {len(call.sampled_ids):,} sampled tokens"
        expect(shown.nth(at)).to_contain_text(facts)
        for tool in call.reply.tool_calls:
            expect(shown.nth(at)).to_contain_text(tool["name"])


def check_cuts(panel: Locator, store: Store, rollout_id: str, causes: Sequence[str]) -> None:
    """Break sentences, the harness's changes and what the gateway did about them."""
    breaks, calls = store.breaks(rollout_id=rollout_id), store.calls(rollout_id)
    assert [str(one.cause) for one in breaks] == list(causes)
    ordinals = {call.id: call.ordinal for call in calls}
    expect(panel.get_by_test_id("ll-sample")).to_have_count(len(store.samples(rollout_id)))
    for one in breaks:
        article = panel.locator(f"[data-call-id='{one.call_id}']")
        expect(article).to_contain_text(explain(one, ordinals))
        if one.cause in (BreakCause.TOOL_ARGS, BreakCause.COMPACTED, BreakCause.TOOLS_CHANGED):
            expect(article.get_by_test_id("ll-difference")).to_contain_text("Since call")
    for call in calls:
        note = panel.locator(f"[data-call-id='{call.id}']").get_by_test_id("ll-gateway")
        if call.kept_replies:
            expect(note).to_contain_text(f"put {call.kept_replies} repl")
        for left in call.left_replies:
            expect(note).to_contain_text(f"left the reply of call {ordinals[left]}")


def check_weights(panel: Locator, store: Store, rollout_id: str) -> None:
    open_rollout(panel, store.rollout(rollout_id))
    mates = store.rollouts(group_id=store.rollout(rollout_id).group_id)
    rows = panel.get_by_test_id("ll-group").get_by_role("listitem")
    expect(rows).to_have_count(len(mates))
    for at, mate in enumerate(mates):
        expect(rows.nth(at)).to_contain_text(f"{mate.reward:.2f}")
        expect(rows.nth(at)).to_contain_text(f"{100 * (mate.weight or 0):.1f} %")
    expect(panel.get_by_test_id("ll-flat")).to_be_visible()


def check_tree(page: Page, panel: Locator, store: Store, rollout_id: str) -> None:
    """The picture has every call; the keyboard walks it, and what it selects is shown."""
    open_rollout(panel, store.rollout(rollout_id))
    calls = store.calls(rollout_id)
    tree = panel.get_by_test_id("ll-tree")
    expect(tree).to_have_attribute("data-calls", str(len(calls)))
    expect(tree).to_have_attribute("data-rows", str(len({call.thread for call in calls})))
    tree.focus()
    for key in ("ArrowRight", "End", "ArrowDown"):
        page.keyboard.press(key)
    helper = [call for call in calls if call.kind == "sub_agent"]
    selected = panel.locator("[data-call-id][aria-current]")
    expect(selected).to_have_attribute("data-call-id", helper[-1].id)
    expect(selected).to_be_in_viewport()
    expect(panel.get_by_test_id("ll-tree-said")).to_contain_text(f"call {helper[-1].ordinal}, sub agent")
    page.screenshot(path=ARTIFACTS / "captured-tree.png")


@pytest.mark.timeout(300)
def test_no_saved_view_has_a_serious_barrier_in_either_theme(jupyterlab: JupyterLab, page: Page) -> None:
    """Outputs of a notebook that nobody runs, and whose kernel never knew the run."""
    run = load(RUN)
    bundles = [run.bundle(), run.rollout("r-opencode-0").bundle(), run.rollout("r-openai-agents-2").bundle()]
    cell = nbformat.v4.new_code_cell("run")
    cell.outputs = [nbformat.v4.new_output("display_data", data=bundle) for bundle in bundles]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), jupyterlab.root / "saved.ipynb")
    page.goto(jupyterlab.page_url("saved.ipynb"))
    for name in ("ll-output-run", "ll-output-rollout"):
        expect(page.get_by_test_id(name).first).to_have_attribute("data-status", "saved")
    for theme in THEMES:
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        expect(page.locator("body")).to_have_attribute("data-jp-theme-name", theme)
        page.wait_for_timeout(500)
        assert serious(page) == [], theme


@pytest.mark.timeout(300)
def test_no_page_has_a_serious_barrier_in_either_theme(jupyterlab: JupyterLab, page: Page) -> None:
    store = open_run(RUN)
    panel = open_run_file(jupyterlab, page)
    for theme in THEMES:
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        expect(page.locator("body")).to_have_attribute("data-jp-theme-name", theme)
        page.wait_for_timeout(500)
        if panel.get_by_test_id("ll-back").count():
            panel.get_by_test_id("ll-back").click()
        for view in ("Timeline", "Compare", "Table"):
            panel.get_by_role("button", name=view, exact=True).click()
            page.wait_for_timeout(500)
            assert serious(page) == [], (theme, view)
        panel.get_by_role("button", name="All charts").click()
        assert serious(page) == [], (theme, "all charts")
        panel.get_by_role("button", name="Fewer charts").click()
        for name in ("opencode", "codex", "openai-agents"):
            open_rollout(panel, store.rollout(f"r-{name}-{2 if name == 'openai-agents' else 0}"))
            for pin in panel.get_by_test_id("ll-pin").all()[:1]:
                pin.click()
            assert serious(page) == [], (theme, name)
    store.close()
