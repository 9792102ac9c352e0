"""The lab inside a real IPython kernel: push while busy, requests, interrupts, restarts."""

from __future__ import annotations

import itertools
import json
import socket
import time
from typing import Any

import numpy as np
import psutil
from notebook_kernels import Kernel, is_alive, wait_until

OPEN = """
import lightning_lab as ll
from notebook_standin import StandInPolicy, asker, says_yes, tasks
lab = ll.Lab(StandInPolicy(delay_s={delay}), concurrency=4)
trainer = ll.Trainer(lab, asker, tasks(), says_yes, n=4, groups=2)
"""
BUSY = """
import time
while run.state == "running":
    time.sleep(0.05)
lab.store.flush()
print(run.state, *(lab.store.counts(run.id)[name] for name in ("total", "succeeded", "calls")))
"""


def totals(kernel: Kernel) -> list[int]:
    return [frame["content"]["data"]["counters"].get("succeeded", 0) for frame in kernel.frames()]


def column(frame: dict[str, Any], name: str) -> np.ndarray[Any, Any]:
    description = next(c for c in frame["content"]["data"]["rollouts"]["columns"] if c["name"] == name)
    return np.frombuffer(bytes(frame["buffers"][description["buffer"]]), "<i4")


class Panel:
    """A front end's request channel, in a subshell of its own, as the extension opens it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._session = kernel.client.session
        self.comm_id = "panel-test"
        control = kernel.client.control_channel
        control.send(self._session.msg("create_subshell_request", {}))
        self.subshell = control.get_msg(timeout=10)["content"]["subshell_id"]
        self._send("comm_open", {"comm_id": self.comm_id, "target_name": "lightning-lab-request", "data": {}})
        self._number = 0

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        message = self._session.msg(kind, content)
        message["header"]["subshell_id"] = self.subshell
        self._kernel.client.shell_channel.send(message)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        data = {"id": self._number, "method": method, "params": params}
        self._send("comm_msg", {"comm_id": self.comm_id, "data": data})
        wait_until(lambda: self._answer(self._number) is not None, f"an answer to {method}", 15)
        answer = self._answer(self._number)
        assert answer is not None
        return answer

    def _answer(self, number: int) -> dict[str, Any] | None:
        for message in list(self._kernel.messages):
            if message["msg_type"] == "comm_msg" and message["content"]["comm_id"] == self.comm_id:
                data: dict[str, Any] = message["content"]["data"]
                if data["id"] == number:
                    return data
        return None


def test_frames_and_answers_come_while_a_cell_is_busy(kernel: Kernel) -> None:
    kernel.run(OPEN.format(delay=0.3))
    kernel.run("run = trainer.fit(steps=3)")
    assert kernel.run("print(1 + 1, run.state)").strip() == "2 running", "fit returns at once"
    busy = kernel.start(BUSY)
    panel = Panel(kernel)
    hello = panel.ask("hello", schema=1, extension="0.1.0")
    assert hello["ok"] and hello["result"]["schema"] == 1 and hello["result"]["lab"]
    assert not any(message["msg_type"] == "execute_reply" for message in kernel.of(busy))

    wait_until(lambda: totals(kernel)[-1] >= 2, "counts in the frames")
    seen = totals(kernel)[-1]
    wait_until(lambda: totals(kernel)[-1] > seen, "counts that go on increasing")
    assert not any(is_over(message) for message in kernel.of(busy)), "the cell ended before it was seen busy"
    answer = panel.ask("rollout", id=kernel_rollout(kernel))
    assert answer["ok"] and answer["result"]["rollout"]["task"]["prompt"].startswith("Is ")
    assert panel.ask("select", rollout="r-1", token=3) == {"id": 3, "ok": True, "result": {}}
    refused = panel.ask("rollout", id="r-unknown")
    assert not refused["ok"] and "r-unknown" in refused["error"]["message"] and refused["error"]["action"]

    state, total, succeeded, calls = kernel.finish(busy).split()
    assert state == "finished"
    truth = {"total": int(total), "succeeded": int(succeeded), "calls": int(calls)}
    wait_until(lambda: truth.items() <= kernel.frames()[-1]["content"]["data"]["counters"].items(), "equal counts", 5)
    rows = {int(row) for frame in kernel.frames() if frame["buffers"] for row in column(frame, "row")}
    assert rows == set(range(int(total)))
    assert kernel.run("print(lab.selection)").strip() == "Selection(rollout='r-1', token=3)"


def is_over(message: dict[str, Any]) -> bool:
    return bool(message["msg_type"] == "status" and message["content"]["execution_state"] == "idle")


def kernel_rollout(kernel: Kernel) -> str:
    """A rollout id out of the frames, as a click in the grid would give it."""
    frame = next(frame for frame in kernel.frames() if frame["buffers"])
    ids = next(c for c in frame["content"]["data"]["rollouts"]["columns"] if c["name"] == "id")
    return str(json.loads(bytes(frame["buffers"][ids["buffer"]]))[0])


def test_key_frames_come_when_nothing_happens_and_frames_are_paced(kernel: Kernel) -> None:
    assert kernel.run(OPEN.format(delay=0) + "\n_ = await trainer.fit(steps=2)") == ""
    assert not [m for m in kernel.messages if m["msg_type"] == "stream"], "background threads never print"
    frames = kernel.frames()
    times = [frame["content"]["data"]["at"] for frame in frames]
    assert all(later - earlier > 0.08 for earlier, later in itertools.pairwise(times))
    sequence = [frame["content"]["data"]["seq"] for frame in frames]
    assert sequence == list(range(sequence[0], sequence[0] + len(sequence)))

    def repeated() -> bool:
        return any(f["content"]["data"]["rollouts"]["rows"] == 16 for f in kernel.frames()[len(frames) :])

    wait_until(repeated, "a key frame with everything while the lab is idle", 15)

    panel = Panel(kernel)
    first = panel.ask("hello", schema=1)["result"]["lab"]
    kernel.run("lab.close()")
    assert panel.ask("hello", schema=1)["result"]["lab"] is None
    assert kernel.frames()[-1]["content"]["data"]["lab_state"] == "closed"
    kernel.run(OPEN.format(delay=0))
    second = panel.ask("hello", schema=1)["result"]["lab"]
    assert second and second != first, "the panel's channel reaches the new lab"


def test_an_interrupted_cell_stops_waiting_and_the_run_goes_on(kernel: Kernel) -> None:
    kernel.run(OPEN.format(delay=0.2))
    cell = kernel.start("run = trainer.fit(steps=4)\nawait run")
    wait_until(lambda: any(totals(kernel)), "the first rollout")
    kernel.manager.interrupt_kernel()
    assert kernel.reply(cell)["content"]["status"] == "error"
    before, after = kernel.run("print(run.state)\nawait run\nprint(run.state, len(run.steps()))").splitlines()
    assert (before, after) == ("running", "finished 4")

    single = kernel.start("await lab.run(asker, tasks()[0], grader=says_yes)")
    time.sleep(0.1)
    kernel.manager.interrupt_kernel()
    kernel.reply(single)
    wait = "import time\nwhile lab.status.running or lab.status.queuing: time.sleep(0.05)\n"
    assert kernel.run(wait + 'print(lab.rollouts().query(\'mode == "single"\')["state"].tolist())').strip() in (
        "['succeeded']",
        "[]",  # interrupted before the rollout was queued
    )


def left_alive(processes: list[psutil.Process]) -> list[str]:
    return [str(process) for process in processes if is_alive(process)]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_restart_leaves_no_process_and_no_port(kernel: Kernel) -> None:
    for now in (False, True):  # a clean restart, then SIGKILL
        kernel.run(OPEN.format(delay=30))
        kernel.run("run = trainer.fit(steps=3)")
        port = int(kernel.run("print(lab.url.rsplit(':', 1)[1])"))
        process = kernel.process()
        wait_until(lambda process=process: len(process.children(recursive=True)) >= 2, "agents to run")
        children = process.children(recursive=True)
        assert listens(port)
        kernel.restart(now=now)
        wait_until(lambda children=children: not left_alive(children), f"processes to end: {left_alive(children)}", 20)
        assert not listens(port)
        kernel.messages.clear()


def test_without_the_extension_the_panel_is_a_summary_that_is_refreshed(kernel: Kernel) -> None:
    kernel.run(OPEN.format(delay=0.2))
    cell = kernel.start("lab.panel()")
    kernel.finish(cell)
    (shown,) = (message for message in kernel.of(cell) if message["msg_type"] == "display_data")
    assert shown["content"]["data"]["application/vnd.lightning-lab+json"]["open_panel"] is True
    assert "pip install lightning-lab" in shown["content"]["data"]["text/html"]
    display_id = shown["content"]["transient"]["display_id"]

    kernel.run("run = trainer.fit(steps=3)\nrun")
    kernel.run("await run")

    def updates() -> list[str]:
        changed = [m for m in list(kernel.messages) if m["msg_type"] == "update_display_data"]
        mine = [m for m in changed if m["content"]["transient"]["display_id"] == display_id]
        return [m["content"]["data"]["text/html"] for m in mine]

    assert any("running" in html for html in updates())
    assert "finished" in updates()[-1] and "step 3 of 3" in updates()[-1]

    count = len(updates())
    assert Panel(kernel).ask("hello", schema=1, extension="0.1.0")["ok"]
    kernel.run("await trainer.fit(steps=1)")
    assert len(updates()) <= count + 1, "the extension draws for itself; only the end is written down"


def test_a_failing_agent_shows_its_own_traceback_in_the_cell(kernel: Kernel) -> None:
    kernel.run(OPEN.format(delay=0))
    kernel.run("@ll.harness\ndef broken(task):\n    raise ValueError(f'cannot do {task.prompt}')")
    reply = kernel.reply(kernel.start("await lab.run(broken, tasks()[0], grader=says_yes)"))["content"]
    assert reply["ename"] == "HarnessError"
    shown = "\n".join(reply["traceback"])
    assert "ValueError: cannot do Is 0 a number?" in shown and "in broken" in shown
    assert "raise_if_failed" not in shown, "the lab's own frames help nobody"
