"""What the agent's process sees, what it may leave behind (nothing), and how it dies with the lab."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import psutil
import pytest

from lightning_lab.controller.capture import KEPT_BYTES
from lightning_lab.records import Outcome, Task
from lightning_lab.tasks import TaskError

KEY = "[redacted key_of_this_rollout]"
"""What a record holds where an agent printed its key."""


def marked_agents(bench):
    """Marked processes beyond the fork servers and their idle supervisors."""
    return [process for process in bench.processes() if "fork_server" not in " ".join(process.cmdline())]


def test_the_environment_is_scrubbed_and_leads_to_the_gateway(bench, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")

    def agent(task):
        start = [Path(f"/proc/{pid}/environ").read_text() for pid in (os.getpid(), os.getppid())]
        return {"env": dict(os.environ), "start": start, "cwd": str(Path.cwd())}

    rollout = bench.run(bench.harness(agent, env={"MY_SETTING": "7", "OPENAI_BASE_URL": "http://elsewhere"}))
    seen = json.loads(rollout.output)
    assert "very-secret" not in rollout.output
    env = seen["env"]
    assert env["OPENAI_BASE_URL"] == f"http://127.0.0.1:9/rollout/{rollout.id}/v1"
    assert env["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:9/rollout/{rollout.id}"
    assert env["OPENAI_API_KEY"] == env["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert env["LIGHTNING_LAB_ROLLOUT"] == rollout.id
    assert env["OPENAI_AGENTS_DISABLE_TRACING"] == "1"
    assert env["MY_SETTING"] == "7"
    assert Path(env["HOME"]).parent == Path(env["TMPDIR"]).parent == Path(seen["cwd"]).parent
    assert str(bench.root) in env["HOME"]
    assert set(env) <= {
        *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "MY_SETTING"),
        *(
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "OPENAI_AGENTS_DISABLE_TRACING",
            "LIGHTNING_LAB_ROLLOUT",
            "SSL_CERT_DIR",
        ),
        *("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "LIGHTNING_LAB_TEST_MARK"),
    }


def test_rollouts_share_neither_folders_nor_random_numbers(bench):
    def agent(task):
        import random
        import tempfile

        import numpy as np

        made = Path(tempfile.mkdtemp())
        listing = sorted(map(str, Path().iterdir()))
        Path("left.txt").write_text("x")
        return [random.random(), float(np.random.rand()), str(made), listing]

    harness = bench.harness(agent, preload=["numpy.random"])
    first, second = (json.loads(bench.run(harness).output) for _ in range(2))
    assert first[0] != second[0] and first[1] != second[1] and first[2] != second[2]
    assert first[3] == second[3] == []


def test_the_agent_inherits_no_way_into_the_lab(bench):
    def agent(task):
        kinds = {}
        for entry in Path("/proc/self/fd").iterdir():
            if entry.is_symlink():
                kinds[entry.name] = str(entry.readlink()).partition(":")[0]
        return kinds

    kinds = json.loads(bench.run(bench.harness(agent)).output)
    assert {kinds.pop("0"), kinds.pop("1"), kinds.pop("2")} == {"/dev/null", "pipe"}
    assert sorted(kind for kind in kinds.values() if not kind.startswith("/proc/")) == ["pipe"]  # its own report


def test_programbench_31_nothing_of_the_agents_tree_survives(bench):
    def agent(task):
        import subprocess

        subprocess.Popen(["sleep", "1000"])
        subprocess.Popen("sleep 1000 & sleep 1000 &", shell=True)
        subprocess.Popen(["setsid", "--fork", "sleep", "1000"]).wait()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
                while True:
                    time.sleep(1000)
            os._exit(0)
        return "done"

    rollout = bench.run(bench.harness(agent))
    assert rollout.output == "done"
    assert marked_agents(bench) == []


def test_a_crowd_of_children_that_keep_forking_is_ended(bench):
    def agent(task):
        for _ in range(3):
            if os.fork() == 0:
                while True:  # every child leaves its session and lives on through a fresh child
                    os.setsid() if os.getsid(0) != os.getpid() else None
                    if os.fork():
                        os._exit(0)
                    time.sleep(0.001)
        time.sleep(0.05)
        return "done"

    assert bench.run(bench.harness(agent)).output == "done"
    supervisors = {process.pid for process in bench.processes()}
    time.sleep(0.2)
    assert {process.pid for process in bench.processes()} == supervisors


def test_printing_100_mb_fills_neither_memory_nor_disk(bench):
    def agent(task):
        os.write(1, b"first line\n")
        block = b"x" * (1 << 20)
        for _ in range(100):
            os.write(1, block)
            os.write(2, block)
        os.write(1, b"\nlast line\n")
        return "done"

    def largest() -> int:
        return max(process.memory_info().rss for process in bench.processes())

    bench.run(bench.harness(lambda task: "quiet"))
    before = largest()
    rollout = bench.run(bench.harness(agent))
    assert rollout.output == "done"
    assert rollout.stdout.startswith("first line\n") and rollout.stdout.endswith("\nlast line\n")
    assert f"{100 * 2**20 + 22 - 2 * KEPT_BYTES} bytes left out" in rollout.stdout
    assert max(len(rollout.stdout), len(rollout.stderr)) < 2 * KEPT_BYTES + 100
    assert largest() < before + (20 << 20)


def test_an_agent_that_kills_its_supervisor_is_lost_and_leaves_nothing(bench):
    def agent(task):
        import subprocess

        subprocess.Popen(["setsid", "--fork", "sleep", "1000"]).wait()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)

    rollout = bench.run(bench.harness(agent))
    assert (rollout.outcome, rollout.reward) == (Outcome.LOST, None)
    bench.wait_until(lambda: marked_agents(bench) == [])
    assert bench.run(bench.harness(lambda task: task.answer)).reward == 1.0


def test_working_directories_go_with_the_rollout(bench):
    def agent(task):
        folder = Path("locked")
        folder.mkdir()
        (folder / "file").touch(mode=0)
        folder.chmod(0)
        return "done"

    def grade(task, result):
        return [path.name for path in Path(result.workdir).rglob("*")] == ["locked", "file"]

    assert bench.run(bench.harness(agent), bench.grader(grade)).reward == 1.0
    assert bench.folders() == []


def test_folders_nested_without_end_neither_stay_nor_break_the_controller(bench):
    def agent(task):
        for _ in range(1200):
            Path("d").mkdir()
            os.chdir("d")
        return "done"

    rollout = bench.run(bench.harness(agent))
    assert (rollout.outcome, rollout.reward) == (Outcome.GRADER_ERROR, None)
    assert "nested too deeply" in rollout.verdict
    assert bench.folders() == []


def test_a_command_gets_its_task_without_the_answer(bench, tmp_path, monkeypatch):
    (tmp_path / "tool.py").write_text("import sys; print(open('task.json').read()); print(sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    harness = bench.command("python", "tool.py", "{prompt}", "{level}/{id}", '{"kept": 1}')
    task = Task(id="t-1", prompt="do {this}", answer="the answer", fields={"level": 3})
    rollout = bench.run(harness, bench.grader(lambda task, result: "do {this}" in result.output), task=task)
    assert (rollout.outcome, rollout.reward, rollout.exit_code) == (Outcome.COMPLETED, 1.0, 0)
    shown, argv = rollout.output.splitlines()
    assert json.loads(shown) == {"id": "t-1", "prompt": "do {this}", "source": "", "fields": {"level": 3}}
    assert argv == "['do {this}', '3/t-1', '{\"kept\": 1}']"


def test_a_command_that_fails_or_is_absent_is_an_agent_error(bench):
    failed = bench.run(bench.command("sh", "-c", "echo on stderr >&2; exit 137"))
    assert (failed.outcome, failed.reward, failed.exit_code) == (Outcome.AGENT_ERROR, 0.0, 137)
    assert failed.stderr == "on stderr\n" and "SIGKILL" in failed.error
    absent = bench.run(bench.command("no-such-program"))
    assert absent.outcome is Outcome.AGENT_ERROR
    assert "'no-such-program' could not be started: No such file" in absent.error


def test_a_command_sees_the_same_scrubbed_environment(bench, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    rollout = bench.run(bench.command("env"))
    assert "very-secret" not in rollout.output
    assert f"OPENAI_API_KEY={KEY}" in rollout.output


KERNEL = """
    import os, signal, sys, time, threading
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background passes on that it is ignored
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    import conftest
    bench = conftest.Bench(Path(sys.argv[2]))
    bench.mark = sys.argv[3]

    def agent(task):
        import os, subprocess, time
        subprocess.Popen(["setsid", "--fork", "sleep", "1000"]).wait()
        print("up", flush=True)
        time.sleep(float(task.answer))
        return "survived"

    harness = bench.harness(agent)
    rollouts = [bench.rollout(harness, task=conftest.Task(id="t", prompt="p", answer=sys.argv[4])) for _ in range(3)]
    grader = bench.grader(lambda task, result: result.output == "survived")
    futures = [bench.controller.submit(each, harness, grader) for each in rollouts]
    bench.wait_until(lambda: all(bench.has_started(each.id) for each in rollouts))
    try:
        print("ready", flush=True)
        time.sleep(1000)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print([future.result(60).reward for future in futures], flush=True)
    bench.close()
"""


@pytest.fixture
def start_kernel(tmp_path):
    """Starts processes that run three agents, as a notebook's kernel does; none outlives the test, however it ends."""
    started = []

    def start(seconds):
        mark = uuid.uuid4().hex
        folder, source = str(Path(__file__).parent), textwrap.dedent(KERNEL)
        command = [sys.executable, "-c", source, folder, str(tmp_path), mark, seconds]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1], mark

    yield start
    for kernel in started:
        kernel.kill()
        kernel.wait()


def test_a_killed_kernel_leaves_no_process(bench, start_kernel, count_processes):
    kernel, mark = start_kernel("1000")
    assert count_processes(mark) >= 7  # the fork server, three supervisors with an agent each, the sleepers
    kernel.kill()
    kernel.communicate()
    bench.wait_until(lambda: count_processes(mark) == 0)


def test_an_interrupted_kernel_keeps_its_agents(start_kernel, count_processes):
    kernel, mark = start_kernel("1.5")
    os.killpg(kernel.pid, signal.SIGINT)
    printed, _ = kernel.communicate(timeout=60)
    assert printed.splitlines() == ["interrupted", "[1.0, 1.0, 1.0]"]
    assert count_processes(mark) == 0


def test_a_fork_server_that_dies_loses_its_rollouts_and_is_replaced(make_bench):
    bench = make_bench()
    harness = bench.harness(lambda task: time.sleep(1000))
    rollout = bench.rollout(harness)
    future = bench.controller.submit(rollout, harness, bench.equal)
    bench.wait_until(lambda: bench.has_started(rollout.id))
    parents = {process.ppid() for process in bench.processes()}
    server = next(process for process in bench.processes() if process.pid in parents and process.ppid() == os.getpid())
    psutil.Process(server.pid).kill()
    lost = future.result(30)
    assert (lost.outcome, lost.reward) == (Outcome.LOST, None)
    assert bench.run(bench.harness(lambda task: task.answer)).reward == 1.0


def test_close_ends_everything_and_may_be_repeated(make_bench):
    bench = make_bench(concurrency=2)
    harness = bench.harness(lambda task: time.sleep(1000))
    rollouts = [bench.rollout(harness) for _ in range(4)]
    futures = [bench.controller.submit(rollout, harness, bench.equal) for rollout in rollouts]
    bench.wait_until(lambda: bench.has_started(rollouts[0].id))
    bench.controller.close()
    bench.controller.close()
    assert [future.result(0).outcome for future in futures] == [Outcome.CANCELLED] * 4
    assert bench.processes() == []
    assert {bench.store.rollout(rollout.id).outcome for rollout in rollouts} == {Outcome.CANCELLED}


def test_a_command_finds_the_tasks_files_and_its_own_in_a_private_home(bench):
    files = {"calc.py": "broken = True\n", "tests/test_calc.py": "import calc\n"}
    harness = bench.command(
        *("sh", "-c", "cat calc.py tests/test_calc.py; cat $RC; ls; ls -A $HOME"),
        env={"RC": "{home}/.config/agent.toml"},
        home={".config/agent.toml": "url={url} key={key}\n"},
    )
    rollout = bench.run(harness, task=Task(id="t", prompt="fix it", fields={"files": files}))
    assert rollout.stdout.splitlines() == [
        "broken = True",
        "import calc",
        f"url=http://127.0.0.1:9/rollout/{rollout.id} key={KEY}",
        "calc.py",
        "task.json",
        "tests",
        ".config",
    ]


def test_a_function_finds_the_tasks_files_too(bench):
    agent = bench.harness(lambda task: Path("calc.py").read_text())
    rollout = bench.run(agent, task=Task(id="t", prompt="fix it", fields={"files": {"calc.py": "broken"}}))
    assert rollout.output == "broken"


def test_files_that_cannot_be_there_are_refused_before_the_rollout_is_queued(bench):
    agent = bench.harness(lambda task: "")
    rollout = bench.rollout(agent, task=Task(id="t", prompt="fix it", fields={"files": {"../x": "y"}}))
    with pytest.raises(TaskError, match="outside the working directory"):
        bench.controller.submit(rollout, agent, None)
    assert rollout.id not in {known.id for known in bench.store.rollouts("run")}
