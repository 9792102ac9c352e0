"""Fork servers: what they import beforehand, and what happens when that goes wrong."""

from __future__ import annotations

import json
import logging
import os
import sys
import time

import pytest

from lightning_lab.controller import Controller, ControllerError
from lightning_lab.records import Outcome


@pytest.fixture
def notebook_folder(tmp_path, monkeypatch):
    """A folder of the user's own modules, importable as it is beside a notebook."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_import_error_of_a_preload_is_the_agents_error_with_its_traceback(bench, notebook_folder):
    (notebook_folder / "broken_preload.py").write_text("raise RuntimeError('boom at import')")
    harness = bench.harness(lambda task: 1, preload=["broken_preload"])
    rollout = bench.run(harness)
    assert (rollout.outcome, rollout.reward) == (Outcome.AGENT_ERROR, 0.0)
    assert "broken_preload.py" in rollout.error and "RuntimeError: boom at import" in rollout.error
    missing = bench.run(bench.harness(lambda task: 1, preload=["no_such_module"]))
    assert "No module named 'no_such_module'" in missing.error
    (notebook_folder / "broken_preload.py").write_text("VALUE = 1")
    assert bench.run(harness).outcome is Outcome.COMPLETED  # repaired, and nothing remembers the failure


def test_a_preload_that_kills_the_fork_server_is_reported(bench, notebook_folder):
    (notebook_folder / "deadly_preload.py").write_text("import os; print('my last words', flush=True); os._exit(9)")
    rollout = bench.run(bench.harness(lambda task: 1, preload=["deadly_preload"]))
    assert rollout.outcome is Outcome.AGENT_ERROR
    assert "deadly_preload" in rollout.error and "my last words" in rollout.error


def test_a_fork_server_that_does_not_come_up_is_a_boot_timeout(make_bench, notebook_folder):
    bench = make_bench(boot_timeout_s=0.5)
    (notebook_folder / "endless_preload.py").write_text("import time; time.sleep(1000)")
    rollout = bench.run(bench.harness(lambda task: 1, preload=["endless_preload"]))
    assert (rollout.outcome, rollout.reward) == (Outcome.BOOT_TIMEOUT, None)


def test_a_rollout_that_waits_for_its_fork_server_can_be_cancelled(make_bench, notebook_folder):
    bench = make_bench()
    (notebook_folder / "slow_preload.py").write_text("import time; time.sleep(1000)")
    harness = bench.harness(lambda task: 1, preload=["slow_preload"])
    rollout = bench.rollout(harness)
    future = bench.controller.submit(rollout, harness, bench.equal)
    bench.wait_until(lambda: bench.controller.running == 1)
    bench.controller.cancel(rollout.id)
    assert future.result(20).outcome is Outcome.CANCELLED


def test_preloaded_modules_are_there_before_the_fork(bench, notebook_folder):
    (notebook_folder / "counted_preload.py").write_text("import os; LOADED_BY = os.getpid()")

    def agent(task):
        import os

        import counted_preload

        return [counted_preload.LOADED_BY, os.getpid()]

    harness = bench.harness(agent, preload=["counted_preload"])
    first, second = (json.loads(bench.run(harness).output) for _ in range(2))
    assert first[0] == second[0] and first[1] != second[1]


def test_an_edited_module_is_loaded_anew(bench, notebook_folder):
    module = notebook_folder / "edited_preload.py"
    module.write_text("VALUE = 'old'")
    import edited_preload

    def agent(task):
        return edited_preload.VALUE

    harness = bench.harness(agent)
    assert bench.run(harness).output == "old"
    time.sleep(0.01)
    module.write_text("VALUE = 'newer'")
    assert bench.run(harness).output == "newer"


def test_threads_of_a_preload_are_warned_about(bench, notebook_folder, caplog):
    (notebook_folder / "threaded_preload.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
    )
    import threaded_preload

    with caplog.at_level(logging.WARNING, "lightning_lab.controller"):
        asked = bench.run(bench.harness(lambda task: 1, preload=["threaded_preload"]))
    assert asked.outcome is Outcome.COMPLETED
    assert "threaded_preload started 1 threads" in caplog.text
    bench.store.flush()
    (event,) = bench.store.events(kind="log")
    assert event.subject == asked.id and "threaded_preload" in event.data["message"]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "lightning_lab.controller"):
        found = bench.run(bench.harness(lambda task: str(threaded_preload.time)))
    assert found.outcome is Outcome.COMPLETED and caplog.text == ""


def test_a_function_tool_of_openai_agents_travels_from_a_notebook_cell(bench):
    agents = pytest.importorskip("agents")
    cell = """
@agents.function_tool
def calc(expr: str) -> str:
    "Evaluate an expression."
    return str(eval(expr))

PROMPT = "use the tool"

async def solver(task):
    bot = agents.Agent(name="solver", instructions=PROMPT, tools=[calc])
    context = agents.tool_context.ToolContext(None, tool_name="calc", tool_call_id="1", tool_arguments="{}")
    return [bot.instructions, await calc.on_invoke_tool(context, '{"expr": "6 * 7"}'), __import__("sys").argv]
"""
    namespace = {"__name__": "__main__", "agents": agents}
    exec(compile(cell, "/tmp/ipykernel_1/2.py", "exec"), namespace)
    rollout = bench.run(bench.harness(namespace["solver"], preload=["agents"]))
    assert rollout.error == ""
    assert json.loads(rollout.output) == ["use the tool", "42", [""]]


def test_prewarming_starts_the_fork_servers(make_bench):
    bench = make_bench()
    harness = bench.harness(lambda task: task.answer)
    bench.controller.prewarm(harness, bench.equal)
    bench.wait_until(lambda: len(bench.processes()) == 2)
    assert bench.run(harness).reward == 1.0


def test_many_versions_do_not_pile_up_fork_servers(make_bench, monkeypatch):
    monkeypatch.setattr("lightning_lab.controller.servers._KEPT_PER_ROLE", 2)
    bench = make_bench()
    for number in range(4):
        assert bench.run(bench.harness(lambda task: task.answer, env={"N": str(number)})).reward == 1.0
    fork_servers = [process for process in bench.processes() if process.ppid() == os.getpid()]
    assert len(fork_servers) == 3  # two of the agents, one of the graders


def test_a_controller_that_does_not_run_says_so(tmp_path, bench):
    harness = bench.harness(lambda task: 1)
    idle = Controller(bench.store, bench.credentials, tmp_path)
    with pytest.raises(ControllerError, match="start"):
        idle.submit(bench.rollout(harness), harness, bench.equal)
    idle.close()
    with pytest.raises(ControllerError, match="closed"):
        idle.start()
    with pytest.raises(ControllerError, match="at least 1"):
        bench.controller.concurrency = 0


def test_the_kernels_path_reaches_the_agent_without_its_empty_entry(bench, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def agent(task):
        import sys

        return sys.path

    path = json.loads(bench.run(bench.harness(agent)).output)
    assert "" not in path and path[0] == str(tmp_path.resolve())
