"""What the panel may ask the lab to do, without a kernel in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from notebook_standin import StandInPolicy, asker, says_yes, tasks

from lightning_lab.notebook import Lab, Trainer
from lightning_lab.notebook.panel import handlers
from lightning_lab.notebook.requests import Requests

OpenLab = Callable[..., Lab]


def panel(lab: Lab) -> Callable[..., dict[str, Any]]:
    requests = Requests(handlers(lab))
    return lambda method, **params: requests.answer({"id": 1, "method": method, "params": params}).data


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the condition is another thread's
            await asyncio.sleep(0.02)


async def test_pausing_holds_calls_and_resuming_lets_them_go_on(open_lab: OpenLab) -> None:
    lab = open_lab()
    ask = panel(lab)
    assert ask("action", name="resume")["error"]["message"] == "Nothing is paused."
    assert ask("action", name="pause")["result"] == {"done": True}
    await until(lambda: lab.paused)
    waiting = asyncio.create_task(lab.run(asker, tasks()[0], grader=says_yes))
    await until(lambda: lab.status.held == 1)
    fields = lab.on_show.now().fields()
    assert fields["paused"] is True
    assert fields["limit"] == {"agents": lab.status.concurrency, "by": "set"}
    assert ask("action", name="resume")["ok"]
    assert (await waiting).state == "succeeded" and not lab.paused


async def test_stop_and_cancel_reach_the_run_and_say_when_there_is_none(open_lab: OpenLab) -> None:
    lab = open_lab(StandInPolicy(delay_s=0.1))
    ask = panel(lab)
    for name in ("stop", "cancel"):
        refused = ask("action", name=name)["error"]
        assert refused["message"] == "No run is training." and refused["action"]
    run = Trainer(lab, asker, tasks(), says_yes, n=2, groups=1).fit(steps=1000)
    await until(lambda: lab.status.running)
    assert ask("action", name="stop")["ok"]
    await run
    assert run.state == "stopped"
    assert not ask("action", name="fly")["ok"]


async def test_one_rollout_can_be_cancelled(open_lab: OpenLab) -> None:
    lab = open_lab(StandInPolicy(delay_s=30))
    waiting = asyncio.create_task(lab.run(asker, tasks()[0], grader=says_yes))
    await until(lambda: lab.status.running)
    (rollout,) = lab.store.rollouts()
    assert panel(lab)("action", name="cancel", rollout=rollout.id)["ok"]
    done = (await asyncio.gather(waiting, return_exceptions=True))[0]
    assert "cancelled" in str(done) and lab.store.rollout(rollout.id).state == "cancelled"


async def test_requests_after_closing_say_so(open_lab: OpenLab) -> None:
    lab = open_lab()
    rollout = await lab.run(asker, tasks()[0], grader=says_yes)
    ask = panel(lab)
    lab.close()
    assert ask("action", name="pause")["error"]["message"] == "The lab is closed."
    assert ask("hello", schema=1)["result"]["lab"] is None
    assert ask("rollout", id=rollout.id)["result"]["rollout"]["reward"] == 1.0


async def test_selections_are_checked(open_lab: OpenLab) -> None:
    lab = open_lab()
    ask = panel(lab)
    assert ask("select", run="run", step=3, rollout="r", call="c")["ok"]
    assert repr(lab.selection) == "Selection(run='run', step=3, rollout='r', call='c')"
    assert ask("select")["ok"] and repr(lab.selection) == "Selection()"
    assert "step" in ask("select", step="three")["error"]["message"]
    assert "colour" in ask("select", colour="red")["error"]["message"]


async def test_the_rows_of_the_run_on_show_can_be_asked_for(open_lab: OpenLab) -> None:
    lab = open_lab()
    ask = panel(lab)
    assert ask("rows", run="none", **{"from": 0})["result"]["rows"] == 0
    for task in tasks()[:3]:
        await lab.run(asker, task, grader=says_yes)
    run = lab.status.run
    await until(lambda: ask("rows", run=run, **{"from": 0})["result"]["rows"] == 3)
    assert ask("rows", run=run, **{"from": 2})["result"]["rows"] == 1
    assert ask("rows", run=run, **{"from": 3})["result"]["rows"] == 0
    assert ask("rows", run=run, **{"from": -1})["result"]["rows"] == 0
    assert ask("rows", run="another", **{"from": 0})["result"]["rows"] == 0
