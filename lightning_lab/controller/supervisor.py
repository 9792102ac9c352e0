"""A process that watches one agent at a time: captures what it prints, ends it, and leaves nothing behind.

The socket to the controller is its lifeline. When the controller closes its half (cancel) or vanishes (SIGKILL of the
kernel), the supervisor kills the agent's whole tree and ends too. It adopts orphans, so ``sleep 1000 &``, a double
fork and ``setsid`` stay in that tree. With the tree empty it waits for the next agent: forking a process that has
large libraries loaded costs several milliseconds, and so only the agent is forked each time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Mapping
from types import FrameType
from typing import Any, NoReturn

from lightning_lab.controller import agent
from lightning_lab.controller.capture import Capture
from lightning_lab.controller.cgroups import Group, Places
from lightning_lab.controller.frames import json_frame, receive
from lightning_lab.controller.process_tree import (
    adopt_orphans,
    at_once,
    die_with_parent,
    kill_descendants,
    reap,
    signal_group,
)
from lightning_lab.controller.usage import Usage

GRACE_S = 0.5
"""Between the polite SIGTERM of a time-out and the end."""
BOOT_S = 30.0
"""For what comes before the agent's own time: unpacking it, or starting its sandbox."""
_CHUNK = 1 << 16
_MAX_REPORT_BYTES = 2 * agent.MAX_OUTPUT_BYTES


def supervise(lifeline: socket.socket, parent: int, places: Places) -> NoReturn:
    """Run agents or graders, one after the other, until the lifeline ends. Called in a process forked for it."""
    code = 1
    try:
        os.setsid()
        signals, wakeup = _catch_signals()
        adopt_orphans()
        die_with_parent(parent, signal.SIGTERM)
        group = Group(places, os.getpid())
        while work := _next_work(lifeline, signals):
            supervision = _Supervision(lifeline, signals, wakeup, group, *work)
            supervision.run()
            if supervision.must_stop:
                break
        code = 0
    except BaseException:
        traceback.print_exc()  # into what the controller keeps of the fork server's output
    finally:
        kill_descendants()
        os._exit(code)


def _next_work(lifeline: socket.socket, signals: int) -> tuple[dict[str, Any], bytes] | None:
    """Wait for what to run and its payload; None when there will be nothing more."""
    while True:
        ready, _, _ = select.select([lifeline.fileno(), signals], [], [])
        if signals in ready and signal.SIGTERM in os.read(signals, 512):
            return None
        if lifeline.fileno() in ready:
            header, payload = receive(lifeline), receive(lifeline)
            return None if header is None or payload is None else (json.loads(header), payload)


class _Supervision:
    def __init__(
        self,
        lifeline: socket.socket,
        signals: int,
        wakeup: int,
        group: Group,
        spec: Mapping[str, Any],
        payload: bytes,
    ) -> None:
        self._lifeline, self._signals, self._wakeup, self._spec = lifeline, signals, wakeup, spec
        self._group = group
        self._captures: dict[int, Capture] = {}
        self._report = bytearray()
        self._announced = False
        self._reason = "exit"
        self._status: int | None = None
        self._ends_at = time.monotonic() + BOOT_S
        group.limit_processes(spec["limits"]["processes"])
        group.limit_memory(spec["limits"]["memory"])
        self._usage = Usage(spec["limits"], spec["folders"], group)
        self._oom_kills, self._memory_kills = _oom_kills(), group.memory_kills()
        self._tell({"event": "launched"})  # first: an agent that ends us at once has begun, and is not begun again
        self._agent = self._fork(payload)

    @property
    def must_stop(self) -> bool:
        """Whether this was the last: the lifeline or the fork server is gone."""
        return self._reason in ("cancelled", "terminated")

    def run(self) -> None:
        self._watch()
        if self._reason == "exit" and not self._usage.look(is_last=True):
            self._reason = "limit"
        self._end_tree()
        for descriptor in self._captures:
            self._read(descriptor)
        self._read_report()
        for descriptor in (*self._captures, self._report_r):
            os.close(descriptor)
        stdout, stderr = (capture.text() for capture in self._captures.values())
        self._tell(
            {
                "event": "gone",
                "reason": self._reason,
                "status": self._status,
                "began": self._announced,
                "over": self._usage.over,
                "oom": self._is_out_of_memory(),
                "ended_at": time.time(),
                "result": self._result(),
                "stdout": stdout,
                "stderr": stderr,
            }
        )

    def _end_tree(self) -> None:
        """Nothing of it is left. A crowd is mostly one group of processes, which the kernel ends in one go."""
        self._group.limit_processes(0)
        with at_once() if self._reason == "limit" else contextlib.nullcontext():
            if self._reason == "limit":
                signal_group(self._agent, signal.SIGKILL)
            self._status = kill_descendants().get(self._agent, self._status)

    def _fork(self, payload: bytes) -> int:
        (out_r, out_w), (err_r, err_w), (self._report_r, report_w) = os.pipe(), os.pipe(), os.pipe()
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.set_wakeup_fd(-1)
            die_with_parent(supervisor, signal.SIGKILL)
            self._lifeline.close()
            null = os.open(os.devnull, os.O_RDONLY)
            for old, new in ((null, 0), (out_w, 1), (err_w, 2)):
                os.dup2(old, new)
            for descriptor in (null, out_r, out_w, err_r, err_w, self._report_r, self._signals, self._wakeup):
                os.close(descriptor)
            agent.become(self._spec, payload, report_w)
        for descriptor in (out_w, err_w, report_w):
            os.close(descriptor)
        for descriptor in (out_r, err_r, self._report_r):
            os.set_blocking(descriptor, False)
        self._captures = {out_r: Capture(), err_r: Capture()}
        return pid

    def _watch(self) -> None:
        """Until the agent has ended or has to."""
        poll = select.poll()
        for descriptor in (self._lifeline.fileno(), self._signals, self._report_r, *self._captures):
            poll.register(descriptor, select.POLLIN)
        next_look = time.monotonic() + self._usage.look_s
        while self._status is None:
            now = time.monotonic()
            if now >= self._ends_at and not self._end_politely():
                return
            if now >= next_look:
                next_look = now + self._usage.look_s
                if not self._usage.look():
                    self._reason = "limit"
                    return
            for descriptor, _ in poll.poll(max(min(self._ends_at, next_look) - now, 0) * 1000 + 1):
                if descriptor == self._lifeline.fileno():
                    self._reason = "cancelled"
                    return
                if descriptor == self._signals:
                    if self._is_told_to_stop():
                        return
                elif not (self._read_report() if descriptor == self._report_r else self._read(descriptor)):
                    poll.unregister(descriptor)

    def _end_politely(self) -> bool:
        """The time is up: SIGTERM and a moment of grace. False when that moment has passed too."""
        if self._reason == "timeout":
            return False
        self._reason = "timeout"
        signal_group(self._agent, signal.SIGTERM)
        self._ends_at = time.monotonic() + GRACE_S
        return True

    def _is_out_of_memory(self) -> bool:
        """Over its own limit; or killed, by SIGKILL itself or as a shell tells it, while the machine had none left."""
        if self._usage.memory_is_over:
            return True
        if self._reason != "exit" or self._status == 0:
            return False
        was_killed = self._status in (-signal.SIGKILL, 128 + signal.SIGKILL)
        return self._group.memory_kills() > self._memory_kills or (was_killed and _oom_kills() > self._oom_kills)

    def _is_told_to_stop(self) -> bool:
        received = os.read(self._signals, 512)
        self._status = reap().get(self._agent, self._status)
        if signal.SIGTERM in received:
            self._reason = "terminated"
            return True
        return False

    def _read(self, descriptor: int) -> bool:
        """Take what is there into the capture; False at the stream's end."""
        for _ in range(64):  # then look at the other descriptors: an agent that never stops printing hides nothing
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._captures[descriptor].feed(data)
        return True

    def _read_report(self) -> bool:
        while True:
            try:
                data = os.read(self._report_r, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            if len(self._report) < _MAX_REPORT_BYTES:
                self._report += data
            if not self._announced and b"\n" in self._report:
                self._announced = True
                self._ends_at = time.monotonic() + self._spec["timeout_s"]
                self._tell({"event": "started", **_parsed(self._report.partition(b"\n")[0])})

    def _result(self) -> dict[str, Any]:
        lines = self._report.split(b"\n")
        return _parsed(lines[-2]) if len(lines) > 1 else {}

    def _tell(self, event: Mapping[str, Any]) -> None:
        try:
            self._lifeline.sendall(json_frame(event))
        except OSError:  # the controller is gone; the tree is killed all the same
            return


def _catch_signals() -> tuple[int, int]:
    """SIGCHLD and SIGTERM as bytes in a pipe, so that one poll waits for everything. Returns both ends."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def nothing(number: int, where: FrameType | None) -> None:
        return

    signal.set_wakeup_fd(writing)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, nothing)
    return reading, writing


def _oom_kills() -> int:
    """How often the kernel's out-of-memory killer has struck on this machine."""
    with open("/proc/vmstat", "rb") as file:  # noqa: PTH123 - cheaper in a process that lives for milliseconds
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def _parsed(line: bytes | bytearray) -> dict[str, Any]:
    """A line that the agent's process wrote: it may be anything."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
