"""``python -m lightning_lab.controller.fork_server``: imports modules once, then forks a supervisor per rollout.

It stays single-threaded (a fork copies one thread only), runs in its own session and dies with the kernel. Messages
arrive on one socket: first what to import, then one message with a descriptor for each process to fork, or without one
where agents showed what else is worth importing.
"""

from __future__ import annotations

import argparse
import asyncio  # noqa: F401 - imported here, once, instead of in every agent
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from types import FrameType
from typing import Any

import cloudpickle  # noqa: F401 - as asyncio

from lightning_lab.controller.agent import reseed
from lightning_lab.controller.cgroups import Places, remove_group
from lightning_lab.controller.late_imports import import_all, take_stock
from lightning_lab.controller.process_tree import adopt_orphans, die_with_parent, kill_descendants, reap
from lightning_lab.controller.supervisor import supervise

_MAX_MESSAGE = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent, signal.SIGKILL)
    adopt_orphans()
    control = socket.socket(fileno=arguments.control)
    control.set_inheritable(False)
    wishes = json.loads(control.recv(_MAX_MESSAGE))
    answer = _load(wishes)
    control.send(json.dumps(answer).encode())
    if "error" not in answer:
        _Server(control, wishes["places"]).run()
    os._exit(0)


def _load(wishes: Mapping[str, Any]) -> dict[str, Any]:
    """Import what was asked for; ``optional`` modules may fail, the agent that needs one will say so itself."""
    sys.path[:] = wishes["path"]
    os.environ.pop("PYTHONPATH", None)
    began = time.monotonic()
    try:
        for name in wishes["preload"]:
            importlib.import_module(name)
    except BaseException:
        return {"error": traceback.format_exc()}
    for name in wishes["optional"]:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
    _settle_memory()
    return {"threads": len(os.listdir("/proc/self/task")), "seconds": time.monotonic() - began}  # noqa: PTH208


def _settle_memory() -> None:
    """What every fork would otherwise do for itself, on pages that it has to copy for it."""
    reseed()  # the first time touches a thousand pages more than the next
    take_stock()
    gc.collect()
    gc.freeze()  # the collector of a fork would touch, and so copy, every preloaded page


class _Server:
    def __init__(self, control: socket.socket, places: Places) -> None:
        self._control, self._places = control, places
        self._pid = os.getpid()
        self._supervisors: set[int] = set()
        self._wakeup_r, self._wakeup_w = os.pipe()
        os.set_blocking(self._wakeup_w, False)
        signal.set_wakeup_fd(self._wakeup_w)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Fork on request until the control socket ends, then end every supervisor, which ends its agent."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wakeup_r, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wakeup_r:
                    os.read(self._wakeup_r, 512)
                    self._reap()
                elif not self._serve():
                    self._end_all()
                    return

    def _serve(self) -> bool:
        """Fork a supervisor for the next message; False when there will be none.

        Where no process can be forked, the lifeline just ends: that one rollout is lost, not the fork server.
        """
        message, descriptors, _, _ = socket.recv_fds(self._control, _MAX_MESSAGE, 1)
        if not message:
            return False
        if not descriptors:
            import_all(json.loads(message))
            _settle_memory()
            return True
        with socket.socket(fileno=descriptors[0]) as lifeline:
            try:
                pid = os.fork()
            except OSError:
                traceback.print_exc()
                return True
            if pid == 0:
                signal.set_wakeup_fd(-1)
                self._control.close()
                os.close(self._wakeup_r)
                os.close(self._wakeup_w)
                supervise(lifeline, self._pid, self._places)
            self._supervisors.add(pid)
        return True

    def _reap(self) -> None:
        """Forget supervisors that have ended; one that did not end by itself may have left its agent to us."""
        ended = reap()
        self._supervisors -= ended.keys()
        if any(status != 0 for status in ended.values()):
            ended |= kill_descendants(keep=frozenset(self._supervisors))
            self._supervisors -= ended.keys()
        for pid in ended:
            remove_group(self._places, pid)

    def _end_all(self) -> None:
        for pid in self._supervisors:
            os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + 5.0
        while self._supervisors and time.monotonic() < end:
            select.select([self._wakeup_r], [], [], 0.05)
            self._reap()
        for pid in kill_descendants():
            remove_group(self._places, pid)


def _nothing(number: int, where: FrameType | None) -> None:
    """Signals only wake the poll."""


if __name__ == "__main__":
    main()
