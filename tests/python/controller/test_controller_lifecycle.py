"""From queued to terminal: states, outcomes, rewards, records, cancellation, concurrency."""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import wait

import pytest

from lightning_lab.controller import ControllerError
from lightning_lab.harnesses.shipping import ShippingError
from lightning_lab.records import Outcome, RolloutState, Sampling, Task


def test_a_rollout_completes_and_is_graded(bench):
    def agent(task):
        print("thinking")
        return task.answer

    rollout = bench.run(bench.harness(agent))
    assert (rollout.state, rollout.outcome, rollout.reward) == (RolloutState.SUCCEEDED, Outcome.COMPLETED, 1.0)
    assert (rollout.output, rollout.stdout, rollout.exit_code, rollout.error) == ("42", "thinking\n", 0, "")
    assert rollout.created_at <= rollout.started_at <= rollout.agent_started_at <= rollout.finished_at


def test_an_async_harness_runs_and_a_wrong_answer_earns_nothing(bench):
    async def agent(task):
        await asyncio.sleep(0)
        return "41"

    rollout = bench.run(bench.harness(agent))
    assert (rollout.outcome, rollout.reward) == (Outcome.COMPLETED, 0.0)


def test_a_class_is_a_harness(bench):
    class Solver:
        def __init__(self):
            self.greeting = "42"

        def __call__(self, task):
            return self.greeting

    assert bench.run(bench.harness(Solver)).reward == 1.0


def test_the_future_resolves_after_the_commit(bench):
    seen = []
    harness = bench.harness(lambda task: task.answer)
    rollout = bench.rollout(harness)
    future = bench.controller.submit(rollout, harness, bench.equal)
    future.add_done_callback(lambda done: seen.append(bench.store.rollout(rollout.id)))
    future.result(60)
    assert bench.wait_until(lambda: seen)[0] == future.result()


def test_every_state_reaches_the_store(bench):
    states = []
    stop = bench.store.subscribe(lambda events: states.extend(event.subject for event in events))
    rollout = bench.run(bench.harness(lambda task: 1))
    stop()
    assert states.count(rollout.id) >= 3  # queuing, running, terminal


@pytest.mark.parametrize(
    ("returned", "text"),
    [(None, ""), ({"a": (1, 2)}, '{"a": [1, 2]}'), (3.5, "3.5"), (b"raw", "b'raw'"), ({1, 2}, "{1, 2}")],
)
def test_what_json_lacks_becomes_text(bench, returned, text):
    assert bench.run(bench.harness(lambda task: returned)).output == text


def test_an_object_that_cannot_be_serialised_becomes_text(bench):
    def agent(task):
        class Strange:
            def __str__(self):
                return "strange \ud800"

        return {"made": Strange()}

    rollout = bench.run(bench.harness(agent))
    assert (rollout.outcome, rollout.output) == (Outcome.COMPLETED, '{"made": "strange ?"}')


def test_an_exception_is_the_agents_and_keeps_its_traceback(bench):
    def agent(task):
        raise KeyError("the key that was missing")

    rollout = bench.run(bench.harness(agent))
    assert (rollout.state, rollout.outcome, rollout.reward) == (RolloutState.FAILED, Outcome.AGENT_ERROR, 0.0)
    assert rollout.error.startswith("Traceback")
    assert 'raise KeyError("the key that was missing")' in rollout.error
    assert "lightning_lab" not in rollout.error
    assert "the key that was missing" in rollout.verdict


@pytest.mark.parametrize(("code", "words"), [(3, "code 3"), (137, "SIGKILL"), (0, "without returning")])
def test_a_process_that_exits_by_itself_is_an_agent_error(bench, code, words):
    def agent(task):
        import os

        os._exit(code)

    rollout = bench.run(bench.harness(agent))
    assert (rollout.outcome, rollout.reward, rollout.exit_code) == (Outcome.AGENT_ERROR, 0.0, code)
    assert words in rollout.error


@pytest.mark.parametrize(("code", "outcome"), [(0, Outcome.COMPLETED), (None, Outcome.COMPLETED), (2, "agent_error")])
def test_sys_exit_counts_by_its_code(bench, code, outcome):
    assert bench.run(bench.harness(lambda task: sys.exit(code))).outcome == outcome


def test_a_harness_that_is_too_slow_times_out_even_if_it_ignores_sigterm(bench):
    def agent(task):
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("started")
        time.sleep(1000)

    rollout = bench.run(bench.harness(agent, timeout_s=0.5))
    assert (rollout.state, rollout.outcome, rollout.reward) == (RolloutState.FAILED, Outcome.TIMEOUT, 0.0)
    assert "0.5 s" in rollout.error
    assert rollout.stdout == "started\n"


@pytest.mark.parametrize("fault", ["policy_error", "context_overflow"])
def test_tinker_cookbook_506_a_fault_of_the_policy_explains_the_failure(bench, fault):
    def agent(task):
        raise RuntimeError("upstream 400")

    bench.credentials.explain = [fault]
    try:
        failed = bench.run(bench.harness(agent))
        recovered = bench.run(bench.harness(lambda task: task.answer))
    finally:
        bench.credentials.explain = []
    assert failed.outcome == fault
    assert failed.reward == {"policy_error": None, "context_overflow": 0.0}[fault]
    assert recovered.outcome is Outcome.COMPLETED


def test_the_credential_lives_as_long_as_the_agent(bench):
    def agent(task):
        time.sleep(1000)

    harness = bench.harness(agent)
    rollout = bench.rollout(harness)
    sampling = Sampling(temperature=0.5)
    future = bench.controller.submit(rollout, harness, bench.equal, sampling=sampling)
    bench.wait_until(lambda: bench.credentials.open.get(rollout.id) == sampling)
    bench.controller.cancel(rollout.id)
    future.result(20)
    assert rollout.id not in bench.credentials.open


def test_cancelling_a_running_rollout_kills_it(bench):
    def agent(task):
        time.sleep(1000)

    harness = bench.harness(agent)
    rollout = bench.rollout(harness)
    future = bench.controller.submit(rollout, harness, bench.equal)
    bench.wait_until(lambda: bench.has_started(rollout.id))
    assert bench.controller.running == 1
    bench.controller.cancel(rollout.id)
    final = future.result(20)
    assert (final.state, final.outcome, final.reward) == (RolloutState.CANCELLED, Outcome.CANCELLED, None)
    bench.controller.cancel(rollout.id)  # a second time, and an unknown one: nothing happens
    bench.controller.cancel("r-unknown")


def test_cancelling_while_the_grader_runs(bench):
    def slow(task, result):
        time.sleep(1000)

    harness, grader = bench.harness(lambda task: 1), bench.grader(slow)
    rollout = bench.rollout(harness)
    future = bench.controller.submit(rollout, harness, grader)
    bench.wait_until(lambda: bench.has_started(rollout.id))
    bench.wait_until(lambda: rollout.id not in bench.credentials.open)
    bench.controller.cancel(rollout.id)
    assert future.result(20).outcome is Outcome.CANCELLED


def test_concurrency_bounds_what_runs_and_cancelled_in_the_queue_never_runs(bench, tmp_path):
    release = tmp_path / "release"

    def agent(task):
        while not release.exists():
            time.sleep(0.01)
        return task.answer

    harness = bench.harness(agent)
    before, bench.controller.concurrency = bench.controller.concurrency, 2
    rollouts = [bench.rollout(harness) for _ in range(5)]
    futures = [bench.controller.submit(rollout, harness, bench.equal) for rollout in rollouts]
    bench.wait_until(lambda: bench.has_started(rollouts[1].id))
    states = [bench.store.rollout(rollout.id).state for rollout in rollouts]
    assert states == [RolloutState.RUNNING] * 2 + [RolloutState.QUEUING] * 3
    bench.controller.cancel(rollouts[4].id)
    cancelled = futures[4].result(20)
    assert (cancelled.outcome, cancelled.started_at) == (Outcome.CANCELLED, None)
    bench.controller.concurrency = 3
    bench.wait_until(lambda: bench.has_started(rollouts[2].id))
    release.touch()
    assert [future.result(30).reward for future in futures[:4]] == [1.0] * 4
    bench.controller.concurrency = before


def test_cancelling_the_future_does_not_cancel_the_rollout(bench):
    harness = bench.harness(lambda task: task.answer)
    future = bench.controller.submit(bench.rollout(harness), harness, bench.equal)
    assert not future.cancel()
    assert future.result(30).reward == 1.0


async def test_it_works_inside_a_running_event_loop(bench):
    harness = bench.harness(lambda task: task.answer)
    futures = [bench.controller.submit(bench.rollout(harness), harness, bench.equal) for _ in range(4)]
    done = await asyncio.gather(*map(asyncio.wrap_future, futures))
    assert [rollout.reward for rollout in done] == [1.0] * 4


def test_the_same_rollout_is_not_taken_twice(bench, tmp_path):
    harness = bench.harness(lambda task: time.sleep(0.2))
    rollout = bench.rollout(harness)
    future = bench.controller.submit(rollout, harness, bench.equal)
    with pytest.raises(ControllerError, match="already"):
        bench.controller.submit(rollout, harness, bench.equal)
    future.result(30)


def test_two_versions_of_one_harness_run_side_by_side(bench):
    def make(word):
        def solver(task):
            time.sleep(0.1)
            return word

        return bench.harness(solver, timeout_s=50 + len(word))

    old, new = make("old"), make("newer")
    futures = [bench.controller.submit(bench.rollout(each), each, bench.equal) for each in (old, new, old, new)]
    wait(futures, 60)
    outputs = [(future.result().output, future.result().harness.version) for future in futures]
    assert outputs == [("old", old.version), ("newer", new.version)] * 2
    assert old.name == new.name and old.version != new.version


def test_what_cannot_be_sent_is_named(bench):
    import threading

    lock = threading.Lock()
    harness = bench.harness(lambda task: lock.acquire())
    with pytest.raises(ShippingError, match=r"'lock' \(a lock\)"):
        bench.controller.submit(bench.rollout(harness), harness, bench.equal)


def test_the_answer_keeps_its_type_on_the_way(bench):
    task = Task(id="t", prompt="p", answer=(1, {"a": 2}))
    rollout = bench.run(
        bench.harness(lambda task: repr(task.answer)),
        bench.grader(lambda task, result: task.answer == (1, {"a": 2})),
        task=task,
    )
    assert (rollout.output, rollout.reward) == ("(1, {'a': 2})", 1.0)


def test_an_output_beyond_the_limit_is_an_error_not_a_cut(bench):
    rollout = bench.run(bench.harness(lambda task: "x" * (5 << 20)))
    assert rollout.outcome is Outcome.AGENT_ERROR
    assert "limit" in rollout.error
