"""``python -m lightning_lab.controller.sandboxed``: the first process of a sandbox opens the way to the gateway, then
becomes the agent.

Its two arguments are descriptors: of a file with the spec and the payload, and of the report's pipe.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from lightning_lab.controller import agent
from lightning_lab.controller.relay import forward


def main() -> NoReturn:
    given, report = (int(argument) for argument in sys.argv[1:3])
    with open(given, "rb") as file:  # noqa: PTH123 - a descriptor
        spec, payload = json.loads(file.readline()), file.read()
    os.set_inheritable(report, False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which bubblewrap was told to ignore, to outlive the agent
    sys.path[:] = spec["path"]
    _open_way(spec["sandbox"], report)
    agent.become({**spec, "sandbox": None}, payload, report)


def _open_way(sandbox: dict[str, Any], report: int) -> None:
    """Start the forwarder. Twice forked, it is no child of the agent, which may wait for all of its children."""
    listener = socket.create_server(("127.0.0.1", sandbox["port"]), backlog=64)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        listener.close()
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    os.close(report)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    asyncio.run(forward(listener, sandbox["gateway"]))
    os._exit(1)


if __name__ == "__main__":
    main()
