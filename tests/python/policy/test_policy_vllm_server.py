"""The process of a server, with a program in vLLM's place that listens, starts a child, and fails when told to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_lab.policy.vllm.errors import EngineStartError, SocketTakenError
from lightning_lab.policy.vllm.server import Server

PROGRAM = """
import os, socket, subprocess, sys
if "--fail" in sys.argv:
    raise ValueError("this model is of no kind that I know")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
with open(os.environ["PIDS"], "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[sys.argv.index("--uds") + 1])
listener.listen()
while True:
    listener.accept()[0].close()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    package = tmp_path / "modules" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(PROGRAM)
    return tmp_path


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def make(place: Path, ended: list[int]) -> Server:
    environment = {"PYTHONPATH": str(place / "modules"), "PIDS": str(place / "pids")}
    return Server(
        "vllm-0",
        place,
        python=Path(sys.executable),
        environment=environment,
        healthy=lambda: listens(place / "vllm-0.sock"),
        on_end=ended.append,
    )


@pytest.fixture
def server(place: Path) -> Iterator[tuple[Server, list[int]]]:
    ended: list[int] = []
    made = make(place, ended)
    yield made, ended
    made.stop()


def pids(place: Path) -> list[int]:
    return [int(pid) for pid in (place / "pids").read_text().split()]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Also a process that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_it_is_started_and_ended_with_all_its_processes(place: Path, server: tuple[Server, list[int]]) -> None:
    made, ended = server
    made.start([])
    started = pids(place)
    assert made.pid == started[0] and listens(made.socket)
    made.stop()
    until(lambda: all(gone(pid) for pid in started))
    assert not made.socket.exists() and not ended


def test_its_death_is_told_and_leaves_nothing(place: Path, server: tuple[Server, list[int]]) -> None:
    made, ended = server
    made.start([])
    started = pids(place)
    os.kill(started[0], signal.SIGKILL)
    until(lambda: ended == [-9] and gone(started[1]))
    made.start([])  # the socket that it left is no hindrance
    assert pids(place) != started


def test_a_process_that_hangs_is_ended_and_no_other(place: Path, server: tuple[Server, list[int]]) -> None:
    made, ended = server
    made.start([])
    first = made.pid
    made.kill(first)
    until(lambda: ended == [-9])
    made.kill(first)
    made.start([])
    made.kill(first)
    made.kill(None)
    assert made.alive and made.pid != first and ended == [-9]


def test_a_program_that_ends_at_once_tells_why(server: tuple[Server, list[int]]) -> None:
    made, ended = server
    with pytest.raises(EngineStartError, match="vllm-0 ended with 1 while it started: ValueError: this model is of no"):
        made.start(["--fail"])
    assert not ended


def test_a_socket_that_somebody_listens_on_is_left_alone(place: Path, server: tuple[Server, list[int]]) -> None:
    made, _ = server
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(made.socket))
        other.listen()
        with pytest.raises(SocketTakenError, match=r"Another program listens on .*vllm-0\.sock"):
            made.start([])
        assert listens(made.socket)


def test_it_ends_with_the_kernel_also_when_that_is_killed(place: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; import test_policy_vllm_server as tests;"
        "tests.make(Path(sys.argv[1]), []).start([]); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    kernel = subprocess.Popen([sys.executable, "-c", code, str(place)], env=environment)
    try:
        until(lambda: (place / "pids").exists() and len(pids(place)) == 2)
        started = pids(place)
        kernel.kill()
        until(lambda: all(gone(pid) for pid in started))
    finally:
        kernel.kill()
        kernel.wait()
