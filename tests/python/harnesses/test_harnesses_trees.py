"""Released agents that send helpers, ask for titles and summarise: every call stands where it belongs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
import pytest
from harnesses_bench import HarnessBench, tool_call, tools_of, turns
from harnesses_coder import DONE, FIX, fixed, shell, task

from lightning_lab.harnesses import Harness
from lightning_lab.records import BreakCause, Call, Outcome, Rollout

pytestmark = [pytest.mark.harnesses, pytest.mark.timeout(400)]

ERRAND = "HELPER: read calc.py and say what add() does."
SUMMARY = "SUMMARY: add() in calc.py subtracts; sed will do."
LONG = "cat calc.py; seq 1 2000"


def think(prompt: str) -> str:
    """The model of all three."""
    if "Task for codex:" in prompt:
        return _compacting(prompt)
    return _sending_a_helper(prompt)


def _sending_a_helper(prompt: str) -> str:
    offered = tools_of(prompt)
    if not offered:
        return "Fix add"
    agent = "claude-code" if "Bash" in offered else "opencode"
    if "Task for" not in prompt:
        return [shell(agent, "cat calc.py"), "It subtracts."][turns(prompt)]
    tool = {"claude-code": "Agent", "opencode": "task"}[agent]
    kind = {"claude-code": "general-purpose", "opencode": "general"}[agent]
    send = tool_call(tool, description="look", prompt=ERRAND, subagent_type=kind)
    return [send, shell(agent, FIX), DONE][min(turns(prompt), 2)]


def _compacting(prompt: str) -> str:
    if SUMMARY in prompt:
        return [shell("codex", FIX), DONE][turns(prompt)]
    if "CONTEXT CHECKPOINT COMPACTION" in prompt:
        return SUMMARY
    return [shell("codex", LONG), shell("codex", "cat test_calc.py")][turns(prompt)]


def harnesses() -> list[Harness]:
    """Two that send helpers, of which one asks for a title too, and one that is told to summarise early."""
    codex, opencode = Harness.profile("codex"), Harness.profile("opencode")
    limit = "model_auto_compact_token_limit = 9000\n"
    return [
        replace(codex, home={path: limit + text for path, text in codex.home.items()}),
        replace(opencode, argv=tuple(part for part in opencode.argv if part not in ("--title", "task"))),
        Harness.profile("claude-code"),
    ]


@dataclass(frozen=True)
class Work:
    bench: HarnessBench
    rollouts: dict[str, Future[Rollout]]

    def calls(self, name: str) -> list[Call]:
        """The calls of a rollout that has ended well, each sampled token of which trains once."""
        ended = self.rollouts[name].result(390)
        assert (ended.outcome, ended.reward) == (Outcome.COMPLETED, 1.0), ended.error + ended.stdout + ended.stderr
        calls = self.bench.calls(ended.id)
        assert all(call.delivered and not call.error for call in calls)
        trained = np.concatenate([sample.ids[sample.mask] for sample in self.bench.samples(ended.id).samples])
        assert np.array_equal(np.sort(trained), np.sort(np.concatenate([call.sampled_ids for call in calls])))
        return calls

    def causes(self, name: str) -> list[BreakCause]:
        return [one.cause for one in self.bench.samples(f"r-{name}").breaks]

    def new_threads(self, name: str) -> set[str]:
        """The calls that began another conversation than one that was answered before."""
        breaks = self.bench.samples(f"r-{name}").breaks
        return {one.call_id for one in breaks if one.cause is BreakCause.NEW_THREAD}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    bench = HarnessBench(tmp_path_factory.mktemp("trees"), think)
    yield Work(bench, {one.name: bench.begin(one, task(one.name), fixed, name=f"r-{one.name}") for one in harnesses()})
    bench.close()


def test_claude_codes_helper_is_a_thread_of_its_own(work):
    calls = work.calls("claude-code")
    helper = [call for call in calls if call.kind == "sub_agent"]
    main = [call for call in calls if call.kind == "main"]
    assert len(helper) == 2 and len(helper) + len(main) == len(calls)
    assert len({call.thread for call in helper}) == 1 and helper[0].thread != "main"
    assert {call.thread for call in main} == {"main"}
    assert [call.parent_id for call in helper] == [None, helper[0].id]
    assert helper[-1].reply.content == "It subtracts."
    assert work.new_threads("claude-code") == {helper[0].id}


def test_opencodes_title_is_a_side_call_and_its_helper_a_thread_of_its_own(work):
    calls = work.calls("opencode")
    kinds = [call.kind for call in calls]
    assert sorted(kinds) == ["main"] * 3 + ["side"] + ["sub_agent"] * 2
    [title] = [call for call in calls if call.kind == "side"]
    assert title.reply.content == "Fix add" and title.thread == "side"
    helper = [call for call in calls if call.kind == "sub_agent"]
    assert [call.parent_id for call in helper] == [None, helper[0].id]
    assert {call.thread for call in calls} == {"main", "side", helper[0].thread}
    first, second = [call for call in calls if call.kind != "sub_agent"][:2]  # title and work
    apart = {second.id} if second.arrived_at >= first.finished_at else set()
    assert work.new_threads("opencode") == {helper[0].id, *apart}


def test_codex_summarises_and_goes_on_in_a_fresh_context(work):
    calls = work.calls("codex")
    assert [call.kind for call in calls] == ["main", "main", "compaction", "main", "main"]
    assert {call.thread for call in calls} == {"main"}
    assert [call.parent_id for call in calls] == [None, calls[0].id, calls[1].id, None, calls[3].id]
    assert calls[2].reply.content == SUMMARY
    # the summary is asked for without tools, which stand first in the prompt
    assert work.causes("codex") == [BreakCause.TOOLS_CHANGED, BreakCause.COMPACTED]
