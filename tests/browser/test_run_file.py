"""An exported run, opened with a double click and without a kernel: what is shown equals what is stored."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from conftest import ARTIFACTS
from playwright.sync_api import Locator, Page, expect
from real_lab import JupyterLab
from test_panel import wait_for

from lightning_lab.records import Break, Rollout
from lightning_lab.samples import explain
from lightning_lab.store import Store, open_run

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "data"))
from panel_run import RUN_ID, make_run  # noqa: E402

AXE = HERE.parents[1] / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """async () => {
  const found = await axe.run('.ll-root', {resultTypes: ['violations']});
  return found.violations
    .filter(violation => ['serious', 'critical'].includes(violation.impact))
    .map(violation => `${violation.id}: ${violation.nodes.map(node => node.html).slice(0, 3).join(' | ')}`);
}"""


def open_file(lab: JupyterLab, page: Page) -> Locator:
    page.goto(lab.page_url(""))
    page.get_by_role("listitem", name="Name: coder.llab").dblclick()
    panel = page.get_by_test_id("ll-panel")
    expect(panel).to_have_attribute("data-status", "file")
    return panel


def open_rollout(panel: Locator, rollout: Rollout) -> None:
    if panel.get_by_test_id("ll-back").count():
        panel.get_by_test_id("ll-back").click()
    panel.get_by_role("searchbox", name="Filter rollouts by text").fill(rollout.id)
    expect(panel.get_by_test_id("ll-grid")).to_have_attribute("data-shown", "1")
    panel.locator(f"[data-testid=ll-grid-row]:not([hidden])[data-rollout-id='{rollout.id}']").click()
    expect(panel.get_by_test_id("ll-transcript")).to_be_visible()


def serious(page: Page) -> list[str]:
    """Accessibility findings that matter, by axe-core."""
    page.add_script_tag(path=AXE)
    return list(page.evaluate(SERIOUS))


def one_with(store: Store, cause: str) -> tuple[Rollout, Break]:
    found = next(item for item in store.breaks(run_id=RUN_ID) if item.cause == cause)
    return store.rollout(found.rollout_id), found


@pytest.mark.timeout(240)
def test_a_stored_run_opens_without_a_kernel_and_shows_what_is_stored(jupyterlab: JupyterLab, page: Page) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    store = open_run(make_run(jupyterlab.root / "coder.llab"))
    try:
        panel = open_file(jupyterlab, page)
        check_run_page(panel, store)
        assert serious(page) == []
        check_problem(panel, store)
        check_break(panel, store)
        check_tokens(page, panel, store)
        check_threads_and_hostile_text(page, panel, store)
        assert serious(page) == []
    finally:
        store.close()
    assert all(url.startswith((jupyterlab.url, "data:", "blob:")) for url in requested), "nothing from elsewhere"
    assert not [url for url in requested if "/api/kernels/" in url], "no kernel is involved"
    assert not (jupyterlab.root / "coder.llab-wal").exists(), "nothing is created beside the file"


def check_run_page(panel: Locator, store: Store) -> None:
    counts = store.counts(RUN_ID)
    expect(panel).to_have_attribute("data-rows", str(counts["total"]))
    for name in ("total", "succeeded", "failed", "infrastructure", "calls"):
        expect(panel.get_by_test_id(f"ll-count-{name}")).to_have_attribute("data-value", str(counts[name]))
    steps = len(store.steps(RUN_ID))
    expect(panel.get_by_test_id("ll-approx-kl-chart")).to_have_attribute("data-points", str(steps))


def check_problem(panel: Locator, store: Store) -> None:
    """A finding opens exactly the rollouts that it is about."""
    cut = {item.rollout_id for item in store.breaks(run_id=RUN_ID) if item.cause == "tool_args"}
    panel.get_by_role("button", name="Breaks: tool args").click()
    expect(panel.get_by_test_id("ll-grid")).to_have_attribute("data-shown", str(len(cut)))
    panel.get_by_test_id("ll-focus").click()


def check_break(panel: Locator, store: Store) -> None:
    rollout, found = one_with(store, "tool_args")
    open_rollout(panel, rollout)
    ordinals = {call.id: call.ordinal for call in store.calls(rollout.id)}
    panel.get_by_test_id("ll-pin").first.click()
    sides = panel.get_by_test_id("ll-sides")
    expect(sides).to_contain_text(explain(found, ordinals))
    previous, call = (store.calls(rollout.id)[ordinals[id]] for id in (found.previous_call_id, found.call_id))
    whole = [*previous.prompt_ids.tolist(), *previous.sampled_ids.tolist()]
    first = sides.locator(".ll-mod-first i")
    expect(first.nth(0)).to_have_text(str(whole[found.index]))
    expect(first.nth(1)).to_have_text(str(call.prompt_ids[found.index]))


def check_tokens(page: Page, panel: Locator, store: Store) -> None:
    rollout, _ = one_with(store, "compacted")
    open_rollout(panel, rollout)
    expect(panel.get_by_test_id("ll-sample")).to_have_count(len(store.samples(rollout.id)))
    samples = store.samples(rollout.id)
    shown = max(range(len(samples)), key=lambda i: int(samples[i].mask.sum()))
    sample, stats = samples[shown], store.token_stats(rollout.id)[shown]
    expect(panel.locator(".ll-flow")).to_have_attribute("data-tokens", str(len(sample.ids)))
    panel.get_by_test_id("ll-flow").focus()
    page.keyboard.press("End")
    card = panel.get_by_test_id("ll-token")
    last = len(sample.ids) - 1
    expect(card).to_contain_text(f"token {last} · id {sample.ids[last]}")
    minus = f"{abs(sample.logprobs[last]):.4f}"
    expect(card).to_contain_text(f"−{minus}")
    expect(card).to_contain_text(f"ratio{stats['ratio'][last]:.4f}")
    page.screenshot(path=ARTIFACTS / "run-file-rollout.png")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.get_by_role("button", name="Copy as code").click()
    ordinal = next(call.ordinal for call in store.calls(rollout.id) if call.id == sample.segments[-1].call_id)
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith(f'/coder.llab").rollout("{rollout.id}").call({ordinal})')


def check_threads_and_hostile_text(page: Page, panel: Locator, store: Store) -> None:
    hostile = next(r for r in store.rollouts(RUN_ID) if "<script>" in r.stdout and r.stderr)
    open_rollout(panel, hostile)
    expect(panel.get_by_test_id("ll-stdout")).to_contain_text("<script>window.hacked = 1</script>")
    expect(panel.get_by_test_id("ll-stdout")).to_contain_text("⟨ESC⟩[31mred")
    for shown in ("⟨NUL⟩", "⟨U+202E⟩evil⟨U+202C⟩", "⟨U+200B⟩"):
        expect(panel.get_by_test_id("ll-stdout")).to_contain_text(shown)
    assert not re.search("[\ud800-\udfff\u202e\x00\x1b]", panel.get_by_test_id("ll-stdout").inner_text())
    assert page.evaluate("window.hacked") is None
    assert panel.locator("script, img, iframe").count() == 0
    long = panel.get_by_test_id("ll-stderr")
    assert len(long.inner_text()) < 10_000
    long.get_by_role("button", name="Show all").click()
    wait_for(lambda: len(long.inner_text()) > 1_000_000, "a line of a megabyte to be shown when asked for")
    threaded = next(r for r in store.rollouts(RUN_ID) if any(c.kind == "sub_agent" for c in store.calls(r.id)))
    open_rollout(panel, threaded)
    kinds = [call.kind for call in store.calls(threaded.id)]
    expect(panel.locator("[data-call-id]")).to_have_count(len(kinds))
    shown = panel.locator("[data-call-id]").evaluate_all("nodes => nodes.map(node => node.dataset.kind)")
    assert shown == kinds
    assert panel.locator(".ll-main > *").last.get_attribute("data-testid") == "ll-verdict"
