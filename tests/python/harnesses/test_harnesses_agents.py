"""Released agents, unmodified, fix a file: what they did, and that every id of it is exact.

lightning-lab harnesses install && pytest -m harnesses tests/python/harnesses
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from harnesses_bench import HarnessBench, sampled
from harnesses_coder import DONE, fixed, solve, task

from lightning_lab.harnesses import Harness
from lightning_lab.records import BreakCause, Outcome, Rollout

pytestmark = [pytest.mark.harnesses, pytest.mark.timeout(400)]


@dataclass(frozen=True)
class Expected:
    """What an agent does to the conversation."""

    protocol: str
    causes: tuple[BreakCause, ...] = ()
    """Of its breaks, in order: every break begins another sample."""
    ends: str = DONE
    """The last reply, as text."""


AGENTS = {
    "mini-swe-agent": Expected("chat", ends=""),
    "codex": Expected("responses"),
    "claude-code": Expected("messages", (BreakCause.EDITED,)),
    "opencode": Expected("chat", (BreakCause.TOOL_ARGS,) * 3),
    "qwen-code": Expected("chat", (BreakCause.TOOL_ARGS,) * 3),
    "openai-agents": Expected("responses"),
    "langchain": Expected("chat", (BreakCause.REASONING_DROPPED, BreakCause.TOOL_ARGS, BreakCause.TOOL_ARGS)),
}


@dataclass(frozen=True)
class Work:
    """All agents at work, side by side at one gateway."""

    bench: HarnessBench
    rollouts: dict[str, Future[Rollout]]

    def __getitem__(self, name: str) -> Rollout:
        return self.rollouts[name].result(390)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    bench = HarnessBench(tmp_path_factory.mktemp("agents"), solve)
    harnesses = {name: Harness.profile(name) for name in AGENTS}
    yield Work(bench, {name: bench.begin(one, task(name), fixed, name=f"r-{name}") for name, one in harnesses.items()})
    bench.close()


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_fixes_the_file(work, name):
    rollout = work[name]
    assert rollout.outcome is Outcome.COMPLETED, rollout.error + rollout.stdout[-3000:] + rollout.stderr[-3000:]
    assert rollout.reward == 1.0
    assert rollout.harness.name == name


@pytest.mark.parametrize("name", AGENTS)
def test_its_calls_are_one_thread_and_each_is_delivered_once(work, name):
    assert work[name].outcome is Outcome.COMPLETED
    calls = work.bench.calls(f"r-{name}")
    assert [call.protocol for call in calls] == [AGENTS[name].protocol] * 4
    assert [call.kind for call in calls] == ["main"] * 4
    assert {call.thread for call in calls} == {"main"}
    assert all(call.delivered and not call.error for call in calls)
    assert [call.parent_id for call in calls] == [None, *(call.id for call in calls[:-1])]
    assert calls[-1].reply.content == AGENTS[name].ends
    assert calls[0].reply.reasoning == "I read it first."


@pytest.mark.parametrize("name", AGENTS)
def test_every_result_comes_back_under_the_id_that_the_gateway_gave(work, name):
    assert work[name].outcome is Outcome.COMPLETED
    calls = work.bench.calls(f"r-{name}")
    for before, after in pairwise(calls):
        [said] = before.reply.tool_calls
        assert said["id"] in before.minted_ids
        assert said["id"] in {message.tool_call_id for message in after.messages if message.role == "tool"}


@pytest.mark.parametrize("name", AGENTS)
def test_the_ids_are_the_sampled_ones_and_each_trains_once(work, name):
    assert work[name].outcome is Outcome.COMPLETED
    calls, found = work.bench.calls(f"r-{name}"), work.bench.samples(f"r-{name}")
    for call in calls:
        assert np.array_equal(call.sampled_ids, sampled(solve(work.bench.policy.decode(call.prompt_ids))))
        assert set(call.versions) == {work.bench.policy.version}
    trained = np.concatenate([sample.ids[sample.mask] for sample in found.samples])
    assert np.array_equal(np.sort(trained), np.sort(np.concatenate([call.sampled_ids for call in calls])))
    assert tuple(one.cause for one in found.breaks) == AGENTS[name].causes
    assert len(found.samples) == 1 + len(AGENTS[name].causes)
