"""An agent that rewards itself: refused, in the record of its rollout, and first among the problems."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import lightning_lab as ll
from lightning_lab.notebook import Lab
from lightning_lab.notebook.cuts import cuts_of
from lightning_lab.notebook.detail import rollout_detail


@ll.harness
def cheat(task: Any) -> str:
    url = os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/reward"
    request = urllib.request.Request(url, data=b'{"value": 1.0}', method="POST")
    request.add_header("Authorization", f"Bearer {os.environ['OPENAI_API_KEY']}")
    try:
        urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        return str(error.code)
    return "rewarded"


@ll.grader
def worthless(task: Any, result: Any) -> float:
    return 0.0


async def test_a_reward_that_an_agent_posts_is_refused_and_shown(open_lab: Callable[..., Lab]) -> None:
    lab = open_lab()
    rollout = await lab.run(cheat, "be good", grader=worthless)
    assert (rollout.output, rollout.reward) == ("404", 0.0)
    problem = lab.on_show.now().problems[0]
    assert (problem["kind"], problem["severity"], problem["rollouts"]) == ("tamper", 3, [rollout.id])
    assert "tried to post or read rewards: POST" in problem["detail"]
    [tried] = rollout_detail(cuts_of(lab.store, rollout.id))["tampering"]
    assert (tried["what"], tried["method"], tried["status"], tried["attempt"]) == ("reward", "POST", 404, 1)
    assert tried["path"] == f"/rollout/{rollout.id}/reward" and tried["at"] >= rollout.record.created_at
