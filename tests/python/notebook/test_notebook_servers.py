"""A lab with other servers around it: a model server behind, external controllers in front."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from notebook_standin import asker, says_yes, tasks

import lightning_lab as ll
from lightning_lab.gateway.agl import AglServer
from lightning_lab.harnesses import HarnessError
from lightning_lab.notebook import GraderError, Lab, LabBusyError, RolloutError, Trainer
from lightning_lab.policy.base import PolicyError
from lightning_lab.records import RolloutState

OpenLab = Callable[..., Lab]


def test_an_endpoints_key_is_in_nothing_that_is_shown_or_stored() -> None:
    spec = ll.Policy.openai("http://127.0.0.1:9/v1", "m", api_key="sk-secret")
    assert "sk-secret" not in f"{spec} {spec!r} {spec.describe()}"
    assert spec == ll.Policy.openai("http://127.0.0.1:9/v1", "m", api_key="sk-secret")
    assert spec != ll.Policy.openai("http://127.0.0.1:9/v1", "m", api_key="sk-other")


def test_a_lab_without_its_model_server_does_not_open(open_lab: OpenLab, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="Is it running"):
        open_lab(ll.Policy.openai("http://127.0.0.1:9/v1", "m"))
    assert not (tmp_path / "runs").exists()


class _Answering(BaseHTTPRequestHandler):
    """A model server that always says yes, and tells no ids."""

    def do_GET(self) -> None:
        self._send({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        said = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        self._send({"choices": [said], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})

    def _send(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def model_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


async def test_an_agent_on_a_model_server_is_run_and_not_trained(open_lab: OpenLab, model_server: str) -> None:
    key = secrets.token_hex(16)  # no literal: a manifest holds the diff of the working tree
    lab = open_lab(ll.Policy.openai(model_server, "m", api_key=key))
    rollout = await lab.run(asker, tasks()[0], grader=says_yes)
    assert rollout.reward == 1.0
    calls = lab.store.calls(rollout.id)
    assert {call.reply.content for call in calls} == {"yes"}
    assert all(call.request_extra["endpoint_left_out"] for call in calls)
    with pytest.raises(PolicyError, match="only answers"):
        Trainer(lab, asker, tasks(), says_yes, n=2, groups=1).fit(steps=1)
    lab.close()
    stored = [path for path in lab.path.parent.rglob("*") if path.is_file()]
    assert not [path for path in stored if key.encode() in path.read_bytes()]


@pytest.mark.parametrize("where", ["thread", "process"])
def test_external_controllers_are_served_on_demand(open_lab: OpenLab, where: str) -> None:
    lab = open_lab(gateway=where)
    served = lab.serve_agl(key="k")
    assert lab.serve_agl() is served
    client = httpx.Client(base_url=served.url, headers={"authorization": "Bearer k"})
    [made] = client.post("/api/rollouts", json=[{"input": {"prompt": "2+2"}}]).json()
    assert lab.store.run(served.run_id).settings["agl_compat"] is True
    assert [one.id for one in lab.store.rollouts(served.run_id)] == [made["rollout_id"]]
    assert lab.status.run == served.run_id
    with pytest.raises(LabBusyError, match="1 rollouts of AglServer"):
        open_lab(concurrency=1)
    path = f"/proxy/rollout/{made['rollout_id']}/attempt/0/mode/train/openai/v1/chat/completions"
    body = {"model": "any", "messages": [{"role": "user", "content": "2+2"}]}
    assert client.post(path, json=body).status_code == 200
    lab.close()
    assert lab.store.rollout(made["rollout_id"]).state is RolloutState.CANCELLED
    with pytest.raises(httpx.ConnectError):
        client.get("/healthz")


class ExternalController(threading.Thread):
    """Takes rollouts from the queue and plays their agents: one call, then the reward."""

    def __init__(self, served: AglServer, reward: float | None = 1.0) -> None:
        super().__init__(daemon=True)
        self.inputs: list[dict[str, Any]] = []
        self._client = httpx.Client(base_url=served.url, headers={"authorization": f"Bearer {served.key}"}, timeout=60)
        self._reward = reward
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(0.02):
            for one in self._client.get("/api/rollouts", params={"state_in": "queuing"}).json():
                self.play(one)

    def play(self, rollout: dict[str, Any]) -> None:
        self.inputs.append(rollout["input"])
        own = f"/api/rollouts/{rollout['rollout_id']}"
        self._client.patch(own, json={"status": {"state": "running", "last_attempt_id": "0"}})
        body = {"model": "any", "messages": [{"role": "user", "content": rollout["input"]["prompt"]}]}
        proxy = f"/proxy/rollout/{rollout['rollout_id']}/attempt/0/mode/train/openai/v1"
        self._client.post(f"{proxy}/chat/completions", json=body).raise_for_status()
        if self._reward is not None:
            reward = self._reward * (len(self.inputs) % 2)
            self._client.post(f"{own}/attempt/0/events", json={"event_type": "reward", "data": {"value": reward}})
        self._client.patch(own, json={"status": {"state": "succeeded"}})

    def stop(self) -> None:
        self._stopped.set()
        self.join()


AGENT = ll.Harness.agent_lightning("agents:Solver", env_map={"Q": "input.prompt"}, timeout_s=60)


async def test_agents_of_an_external_controller_run_and_train(open_lab: OpenLab) -> None:
    lab = open_lab()
    with pytest.raises(HarnessError, match="serve_agl"):
        await lab.run(AGENT, "2+2")
    served = lab.serve_agl()
    with pytest.raises(HarnessError, match="posted"):
        await lab.run(AGENT, "2+2", grader=says_yes)
    controller = ExternalController(served)
    controller.start()
    try:
        rollout = await lab.run(AGENT, tasks()[0], grader=ll.tasks.posted)
        assert rollout.reward == 1.0
        assert controller.inputs[0]["answer"] == tasks()[0].answer
        run = Trainer(lab, AGENT, tasks(), ll.tasks.posted, n=2, groups=2).fit(steps=1)
        await run
    finally:
        controller.stop()
    assert lab.store.run(run.id).settings["agl_compat"] is True
    [step] = lab.store.steps(run.id)
    trained = [lab.store.rollout(one) for one in step.rollout_ids]
    assert len(trained) == 4
    assert sorted(one.reward for one in trained) == [0.0, 0.0, 1.0, 1.0]
    assert {one.harness.kind for one in trained} == {"external"}
    assert all(lab.store.samples(one.id) for one in trained)


async def test_an_agent_that_posts_no_reward_is_a_grader_error(open_lab: OpenLab) -> None:
    lab = open_lab()
    controller = ExternalController(lab.serve_agl(), reward=None)
    controller.start()
    try:
        with pytest.raises(GraderError, match="posted no reward"):
            await lab.run(AGENT, "2+2", grader=ll.tasks.posted)
    finally:
        controller.stop()


async def test_what_no_controller_takes_can_be_cancelled(open_lab: OpenLab) -> None:
    lab = open_lab()
    lab.serve_agl()
    waiting = asyncio.ensure_future(lab.run(AGENT, "2+2"))
    while not (queued := lab.store.rollouts(state="queuing")):  # noqa: ASYNC110 - another thread's store
        await asyncio.sleep(0.01)
    lab.cancel_rollout(queued[0].id)
    with pytest.raises(RolloutError, match="cancelled"):
        await waiting


def test_an_agent_must_be_named() -> None:
    with pytest.raises(HarnessError, match="Which agent"):
        ll.Harness.agent_lightning()
