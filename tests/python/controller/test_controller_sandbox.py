"""Agents in bubblewrap: what they see, what they reach, and how they end."""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lightning_lab.controller import Limits, Sandbox, SandboxError
from lightning_lab.records import Outcome, Task


def refusal():
    """Why this machine's kernel allows no sandbox. That bubblewrap is absent is a failure of the set-up, no excuse."""
    try:
        Sandbox.find()
    except SandboxError as error:
        return str(error) if "cannot make a sandbox here" in str(error) else ""
    return ""


REFUSED = refusal()
in_sandbox = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)


class Gateway(BaseHTTPRequestHandler):
    """Says which path was asked, and how."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        said = json.dumps([self.path, self.headers["Authorization"], len(body)]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def gateway():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def shut_in(make_module_bench, gateway):
    bench = make_module_bench(sandbox=Sandbox.find(), limits=Limits(disk_gb=0.02))
    bench.credentials.gateway = f"http://127.0.0.1:{gateway}"
    return bench


@in_sandbox
def test_a_call_of_the_model_goes_through(shut_in):
    def agent(task):
        import urllib.request

        url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
        request = urllib.request.Request(f"{url}/x", b"y" * 1_000_000, {"Authorization": f"Bearer {key}"})
        return json.loads(urllib.request.urlopen(request).read())

    rollout = shut_in.run(shut_in.harness(agent))
    path, key, size = json.loads(rollout.output)
    assert (path, size) == (f"/rollout/{rollout.id}/v1/x", 1_000_000)
    assert key == "Bearer [redacted key_of_this_rollout]"


@in_sandbox
def test_nothing_else_can_be_reached(shut_in, gateway):
    listener = socket.create_server(("127.0.0.1", 0))

    def agent(task):
        reached = []
        for address in task.fields["addresses"]:
            try:
                socket.create_connection(tuple(address), timeout=2).close()
                reached.append(address)
            except OSError:
                continue
        return reached

    own = socket.gethostbyname(socket.gethostname())
    addresses = [(host, port) for host in {"127.0.0.1", own} for port in (listener.getsockname()[1], gateway)]
    rollout = shut_in.run(shut_in.harness(agent), task=Task(id="t", prompt="p", fields={"addresses": addresses}))
    listener.close()
    assert json.loads(rollout.output) == [["127.0.0.1", gateway]]  # which is the forwarder


@in_sandbox
def test_the_users_files_and_processes_are_not_there(shut_in, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("of the user")

    def agent(task):
        def is_readable(path):
            try:
                return bool([*path.iterdir()] if path.is_dir() else path.read_text())
            except OSError:
                return False

        places = [*task.fields["users"], "/etc/shadow", "/home", "/run", "/sys", "/var/lib"]
        processes = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [[each for each in places if is_readable(Path(each))], len(processes), [*map(str, Path().iterdir())]]

    task = Task(id="t", prompt="p", fields={"users": [str(secret), str(Path.home() / ".ssh")]})
    seen, processes, folder = json.loads(shut_in.run(shut_in.harness(agent), task=task).output)
    assert (seen, folder) == ([], [])
    assert processes <= 4  # bubblewrap, the forwarder, the agent


@in_sandbox
def test_only_its_own_folders_can_be_written(shut_in):
    places = "/ /usr /etc /opt /var . $HOME $TMPDIR /tmp"
    agent = shut_in.command("sh", "-c", f"for p in {places}; do touch $p/mine 2>/dev/null && echo $p; done; ls -A /tmp")
    rollout = shut_in.run(agent)
    home, *rest = [line for line in rollout.output.splitlines() if line.startswith("/")]
    assert rollout.output.splitlines()[0] == "."
    assert home.endswith("/home") and rest == ["/tmp", "/tmp"]
    assert shut_in.folders() == []


@in_sandbox
def test_the_agent_has_no_privileges_and_no_way_into_the_lab(shut_in):
    def agent(task):
        status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
        files = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [status["CapEff"], status["CapBnd"], status["NoNewPrivs"], [name.split(":")[0] for name in files]]

    effective, bound, no_new, files = json.loads(shut_in.run(shut_in.harness(agent)).output)
    assert (int(effective, 16), int(bound, 16), no_new) == (0, 0, "1")
    assert not {"socket", "/memfd"} & set(files)


@in_sandbox
def test_the_result_of_a_command_and_its_files_reach_the_grader(shut_in):
    def grade(task, result):
        return (result.output, result.exit_code, (Path(result.workdir) / "out").read_text()) == ("said\n", 0, "left\n")

    agent = shut_in.command("sh", "-c", "cat task.json > /dev/null && echo left > out && echo said")
    assert shut_in.run(agent, shut_in.grader(grade)).reward == 1.0


@in_sandbox
def test_nothing_survives_and_the_time_out_is_polite(shut_in):
    agent = shut_in.command(
        "sh", "-c", "setsid sleep 1000 & trap 'echo bye; exit 3' TERM; echo up; sleep 1000 & wait", timeout_s=2
    )
    rollout = shut_in.run(agent)
    assert (rollout.outcome, rollout.stdout) == (Outcome.TIMEOUT, "up\nbye\n")
    assert all("fork_server" in " ".join(process.cmdline()) for process in shut_in.processes())


@in_sandbox
def test_modules_of_the_notebook_can_be_imported_and_what_lies_beside_them_not_read(shut_in, tmp_path, monkeypatch):
    (tmp_path / "sandbox_tools.py").write_text("def answer(): return '42'\n")
    (tmp_path / ".env").write_text("SECRET=1")
    monkeypatch.syspath_prepend(str(tmp_path))
    tools = importlib.import_module("sandbox_tools")
    agent = shut_in.harness(lambda task: [tools.answer(), Path(tools.__file__).with_name(".env").exists()])
    rollout = shut_in.run(agent)
    sys.modules.pop("sandbox_tools")
    assert json.loads(rollout.output) == ["42", False]


@in_sandbox
def test_what_is_written_to_tmp_counts_in_the_quota(shut_in):
    rollout = shut_in.run(
        shut_in.command("sh", "-c", "for f in a b c; do head -c 9000000 /dev/urandom > /tmp/$f; done")
    )
    assert (rollout.outcome, "Limits.disk_gb" in rollout.error) == (Outcome.AGENT_ERROR, True)


@in_sandbox
def test_paths_that_are_named_can_be_read(make_bench, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows.txt").write_text("rows")
    bench = make_bench(sandbox=Sandbox.find([data]))
    rollout = bench.run(bench.command("sh", "-c", f"cat {data}/rows.txt; touch {data}/mine"))
    assert (rollout.outcome, rollout.output) == (Outcome.AGENT_ERROR, "rows")
    assert "Read-only" in rollout.stderr


def test_a_sandbox_that_fails_to_start_is_no_failure_of_the_agent(make_bench):
    bench = make_bench(sandbox=Sandbox(program="/bin/false"))
    rollout = bench.run(bench.harness(lambda task: task.answer))
    assert (rollout.outcome, rollout.reward) == (Outcome.LOST, None)
    assert "before the agent began" in rollout.error


def test_a_machine_without_bubblewrap_is_told_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        Sandbox.find()


def test_a_kernel_that_refuses_is_quoted(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=r"No permissions.*seccomp.*apparmor"):
        Sandbox.find()


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SandboxError, match="is not there"):
        Sandbox.find([tmp_path / "nothing"])
