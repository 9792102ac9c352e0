"""Agent Lightning v1.0's routes: the same requests to its own server and to ours, then its controller and agents."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import agl_package
import httpx
import pytest
from gateway_agl import AUTH, KEY, Served, proxy
from gateway_lab import chat_body
from gateway_upstream import Upstream, status

from lightning_lab.gateway import Gateway
from lightning_lab.gateway.agl import AglServer
from lightning_lab.policy.openai import OpenAIPolicy
from lightning_lab.records import Outcome, RolloutState
from lightning_lab.samples import build_samples
from lightning_lab.store import Store

WHOLE = {
    "id": "x",
    "object": "chat.completion",
    "prompt_token_ids": [1, 2, 3],
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "4"},
            "token_ids": [10, 11],
            "logprobs": {"content": [{"token": "4", "logprob": -0.5}, {"token": "", "logprob": -0.25}]},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}

R = "/api/rollouts/r1"
CALL = f"{proxy('r1')}/chat/completions"
MADE = {"input": {"q": "2+2", "data_id": "d7"}, "rollout_id": "r1", "metadata": {"batch_idx": 3, "mine": "x"},
        "config": {"timeout_seconds": 9, "local": {"agent_class": "a:B", "env_map": {"Q": "input.q"}}}}  # fmt: skip
TALK: list[tuple[str, str, Any]] = [
    ("GET", "/healthz", None),
    ("GET", "/nowhere", None),
    ("POST", "/api/models", [{"model": "m", "endpoint": "UPSTREAM"}]),
    ("POST", "/api/models", {"model": "m"}),
    ("POST", "/api/rollouts", [MADE]),
    ("POST", "/api/rollouts", [MADE]),
    ("POST", "/api/rollouts", [{"input": "text", "is_train": False, "rollout_id": "r2"}]),
    ("POST", "/api/rollouts", [{"is_train": True}]),
    ("POST", "/api/rollouts", {"input": 1}),
    ("POST", "/api/rollouts", [{"input": 1, "config": {"timeout_seconds": "soon"}}]),
    ("GET", "/api/rollouts", None),
    ("GET", "/api/rollouts?state_in=odd", None),
    ("GET", "/api/rollouts?state_in=queuing&state_in=running&limit=50", None),
    ("GET", "/api/rollouts?state_in=queuing&limit=1", None),
    ("GET", "/api/rollouts?state_in=succeeded", None),
    ("GET", R, None),
    ("GET", "/api/rollouts/none", None),
    ("GET", f"{R}/events", None),
    ("GET", "/api/rollouts/none/events", None),
    ("PATCH", R, {}),
    ("PATCH", R, {"status": {"state": "succeeded"}}),
    ("PATCH", R, {"status": {"state": "queuing"}}),
    ("PATCH", R, {"status": {"state": "odd"}}),
    ("PATCH", R, {"status": {"state": None}}),
    ("PATCH", R, {"status": {"version": 9}}),
    ("PATCH", R, {"status": {"k8s_job_name": "job-1"}}),
    ("PATCH", R, {"status": {"state": "running", "last_attempt_id": "0"}}),
    ("PATCH", R, {"status": {"state": "running"}}),
    ("PATCH", "/api/rollouts/none", {"status": {"state": "running"}}),
    ("POST", CALL, chat_body("2+2")),
    ("POST", CALL, "not an object"),
    ("POST", CALL.replace("train", "test"), chat_body("2+2")),
    ("POST", CALL.replace("r1", "none"), chat_body("2+2")),
    ("GET", R, None),
    ("POST", f"{R}/attempt/0/events", {"event_type": "note", "data": {"x": 1}}),
    ("POST", f"{R}/attempt/0/events", {"event_type": "reward", "data": {"value": 1.5, "source": "agent", "z": 1}}),
    ("POST", f"{R}/attempt/7/events", {"event_type": "reward", "data": {"value": 0.0}}),
    ("POST", f"{R}/attempt/0/events", {"data": {}}),
    ("POST", f"{R}/attempt/0/events", {"event_type": "note", "data": [1]}),
    ("POST", "/api/rollouts/none/attempt/0/events", {"event_type": "note"}),
    ("GET", f"{R}/events?event_type=reward", None),
    ("GET", f"{R}/events?format=triplet&include_routed_experts=false", None),
    ("GET", f"{R}/events?format=other&event_type=note", None),
    ("GET", "/api/rollouts/terminal", None),
    ("PATCH", R, {"status": {"state": "succeeded", "last_attempt_id": "0"}}),
    ("PATCH", R, {"status": {"state": "failed"}}),
    ("PATCH", "/api/rollouts/r2", {"status": {"state": "failed", "error_message": "no luck"}}),
    ("GET", "/api/rollouts/terminal?after=-5&limit=0", None),
    ("GET", "/api/rollouts/terminal?after=1", None),
    ("GET", "/api/rollouts/terminal?after=99", None),
    ("GET", "/api/rollouts/terminal?after=x", None),
    ("POST", f"{R}/attempt/0/events", {"event_type": "reward", "data": {"value": 2.0}}),
    ("GET", "/proxy/state", None),
    ("POST", "/proxy/pause", {"retry_after_seconds": 3, "reason": "update"}),
    ("POST", "/proxy/pause", {"retry_after_seconds": "x"}),
    ("GET", "/proxy/state", None),
    ("POST", "/proxy/resume", None),
    ("GET", "/proxy/state", None),
    ("DELETE", "/api/rollouts/r2", None),
    ("DELETE", "/api/rollouts/r2", None),
    ("GET", "/api/rollouts/terminal", None),
    ("DELETE", "/api/models", None),
]  # fmt: skip


async def talk(url: str, upstream: str) -> list[tuple[int, Any]]:
    """Statuses and bodies of the answers, without what differs from run to run."""
    answers = []
    async with httpx.AsyncClient(base_url=url, headers=AUTH, timeout=60) as client:
        for method, path, body in TALK:
            if path == "/api/models" and isinstance(body, list):
                body = [{**body[0], "endpoint": upstream}]
            response = await client.request(method, path, json=body)
            answers.append((response.status_code, plain(response)))
    return answers


def plain(response: httpx.Response) -> Any:
    if response.status_code == 422:
        return [one["loc"] for one in response.json()["detail"]]
    if not response.content:
        return None
    return without_times(response.json())


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        times = ("timestamp", "created_at", "updated_at", "endpoint")
        return {name: without_times(inner) for name, inner in value.items() if name not in times}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def peer() -> Iterator[str]:
    """The URL of Agent Lightning's own server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["host=127.0.0.1", f"port={port}", f"key={KEY}", "default_proxy.model_name=m", "hydra.run.dir=/tmp"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agentlightning.server", *options, "hydra.output_subdir=null"],
        env={**os.environ, "PYTHONPATH": str(agl_package.directory())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        while not answers(f"{url}/healthz"):
            assert process.poll() is None
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def ours(upstream: Upstream, folder: Path) -> AbstractContextManager[AglServer]:
    """Our routes, with the same upstream behind the gateway."""

    @contextmanager
    def opened() -> Iterator[AglServer]:
        policy = OpenAIPolicy(upstream.url, "m", api_key="")
        with Store(folder / "store.sqlite") as store:
            gateway = Gateway(policy, store)
            gateway.start()
            server = AglServer(gateway, store, model="m", key=KEY)
            server.start()
            yield server
            server.close()
            gateway.close()
            policy.close()

    return opened()


@pytest.mark.timeout(300)
async def test_it_answers_as_agent_lightnings_own_server_does(peer, upstream, tmp_path):
    upstream.say(status(200, WHOLE))
    their_answers = await talk(peer, upstream.url)
    with ours(upstream, tmp_path) as server:
        our_answers = await talk(server.url, upstream.url)
    for (method, path, _), their, our in zip(TALK, their_answers, our_answers, strict=True):
        if path == CALL:  # an answer of the gateway's own: whole, in OpenAI's shape
            assert their[0] == our[0]
        else:
            assert their == our, f"{method} {path}"
    [said] = [body for status, body in our_answers if status == 200 and "choices" in (body or {})]
    assert said["choices"][0]["message"]["content"] == "4"


# -- its controller, its client and agents ----------------------------------------------------------------------------

AGENTS = """
import os, sys, time
import httpx

class Solver:
    def run(self):
        import openai
        client = openai.OpenAI(base_url=os.environ["AGL_OPENAI_BASE_URL"], api_key=os.environ["AGL_KEY"])
        said = [{"role": "user", "content": os.environ["QUESTION"]}]
        for turn in ("again", "and again"):
            reply = client.chat.completions.create(model="any", messages=said)
            said += [reply.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": turn}]
        good = reply.choices[0].message.content == "again"
        reward = {"event_type": "reward", "data": {"value": float(good), "source": "agent"}}
        key = {"Authorization": "Bearer " + os.environ["AGL_KEY"]}
        httpx.post(os.environ["AGL_EVENT_URL"], json=reward, headers=key).raise_for_status()

class Rewarded:
    async def run(self):
        reward = {"event_type": "reward", "data": {"value": 0.5}}
        key = {"Authorization": "Bearer " + os.environ["AGL_KEY"]}
        httpx.post(os.environ["AGL_EVENT_URL"], json=reward, headers=key).raise_for_status()

class Broken:
    def run(self):
        raise ValueError("on purpose")

class Slow:
    def run(self):
        time.sleep(600)
"""


@pytest.fixture
def controller(served: Served, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Agent Lightning's own local controller, pointed at our routes."""
    (tmp_path / "agents_of_theirs.py").write_text(AGENTS)
    options = ["runner_type=local", f"agl_server.url={served.server.url}", f"agl_server.key={KEY}",
               "local_runner.poll_interval=0.2", "local_runner.maximum_size=4", "hydra.run.dir=.",
               "hydra.output_subdir=null"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "agentlightning.controller", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(agl_package.directory()), str(tmp_path)])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process
    process.terminate()
    process.wait(30)


@pytest.mark.timeout(300)
async def test_its_client_controller_and_agents_run_unchanged(served, controller, monkeypatch):
    monkeypatch.syspath_prepend(str(agl_package.directory()))
    from agentlightning.client import AgentLightningSyncClient
    from agentlightning.schemas import Rollout, RolloutConfig, RolloutCreate, RolloutLocalConfig

    def local(agent: str, seconds: int = 3600) -> RolloutConfig:
        agent_class = f"agents_of_theirs:{agent}"
        return RolloutConfig(
            timeout_seconds=seconds, local=RolloutLocalConfig(agent_class=agent_class, env_map={"QUESTION": "input.q"})
        )

    asked = [
        RolloutCreate(input={"q": "2+2"}, config=local("Solver")),
        RolloutCreate(input={"q": "2+2"}, config=local("Rewarded"), is_train=False),
        RolloutCreate(input={"q": "x"}, config=local("Broken")),
        RolloutCreate(input={"q": "x"}, config=local("Slow", 1)),
        RolloutCreate(input={"q": "x"}),
    ]

    def drive() -> tuple[list[str], dict[str, Any]]:
        with AgentLightningSyncClient(base_url=served.server.url, key=KEY) as client:
            body = [one.model_dump(mode="json", exclude_none=True) for one in asked]
            made = [Rollout.model_validate(one) for one in client.post_with_retry("/api/rollouts", json=body).json()]
            ids = [one.rollout_id for one in made]
            seen: set[str] = set()
            page = {"next_after": 0}
            while len(seen) < len(ids):
                page = client.get("/api/rollouts/terminal", params={"after": page["next_after"]}).json()
                seen |= {item["rollout_id"] for item in page["items"]}
                threading.Event().wait(0.1)
            triplets = client.get(f"/api/rollouts/{ids[0]}/events", params={"format": "triplet"}).json()
            return ids, {"events": triplets}

    ids, told = await asyncio.to_thread(drive)
    solved, validated, broken, slow, nowhere = [served.store.rollout(one) for one in ids]
    assert (solved.state, solved.outcome, solved.reward) == (RolloutState.SUCCEEDED, Outcome.COMPLETED, 1.0)
    assert (solved.mode, validated.mode, validated.reward) == ("train", "eval", 0.5)
    assert solved.group_id == validated.group_id != broken.group_id
    assert solved.harness.name == "agents_of_theirs:Solver"
    assert [one.outcome for one in (broken, slow, nowhere)] == [Outcome.AGENT_ERROR, Outcome.TIMEOUT, Outcome.LOST]
    assert [one.reward for one in (broken, slow, nowhere)] == [None] * 3
    calls = served.store.calls(solved.id)
    assert [call.reply.content for call in calls] == ["2+2", "again"]
    assert all(call.delivered for call in calls)
    [sample] = build_samples(calls).samples
    assert sample.mask.sum() == sum(len(call.sampled_ids) for call in calls)
    first, second, reward = told["events"]
    assert [event["data"]["response_token_ids"] for event in (first, second)] == [c.sampled_ids.tolist() for c in calls]
    assert second["data"]["prompt_token_ids"] == calls[1].prompt_ids.tolist()
    assert first["data"]["response_log_probs"] == [-0.5] * len(calls[0].sampled_ids)
    assert reward["data"] == {"value": 1.0, "source": "agent"}
    run = served.store.run(solved.run_id)
    assert run.settings["agl_compat"] is True
