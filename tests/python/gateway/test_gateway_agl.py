"""Agent Lightning v1.0's routes: what this lab makes of them."""

from __future__ import annotations

import asyncio
import http.client
import re
import threading
from dataclasses import replace

import httpx
import pytest
from gateway_agl import AUTH, KEY, proxy
from gateway_lab import HASTY, Say, chat_body, echo

from lightning_lab.gateway import GatewayError
from lightning_lab.gateway.agl import AglServer
from lightning_lab.records import Outcome, RolloutState


async def test_a_rollout_is_recorded_like_any_other(served):
    rollout_id = await served.make(input={"question": "2+2", "data_id": "d1"})
    assert served.store.rollout(rollout_id).state is RolloutState.QUEUING
    await served.move(rollout_id, "running", last_attempt_id="0")
    assert (await served.chat(rollout_id, "hello")).json()["choices"][0]["message"]["content"] == "hello"
    await served.post(rollout_id, "reward", {"value": 0.25})
    await served.post(rollout_id, "reward", {"value": 0.5})
    await served.move(rollout_id, "succeeded")
    rollout = served.store.rollout(rollout_id)
    assert (rollout.reward, rollout.outcome) == (0.5, Outcome.COMPLETED)
    assert (rollout.task.prompt, rollout.task.id, rollout.task.source) == ("2+2", "d1", "agl_compat")
    assert rollout.finished_at >= rollout.started_at >= rollout.created_at
    [call] = served.store.calls(rollout_id)
    assert call.attempt == rollout.attempt == 1
    assert served.store.counts(served.server.run_id)["succeeded"] == 1


@pytest.mark.parametrize("value", [None, "1", True, [1], {"a": 1}])
async def test_what_is_no_number_is_no_reward(served, value):
    rollout_id = await served.make()
    await served.move(rollout_id, "running")
    assert (await served.post(rollout_id, "reward", {"value": value})).status_code == 200
    await served.move(rollout_id, "succeeded")
    rollout = served.store.rollout(rollout_id)
    assert rollout.reward is None
    assert "no reward" in rollout.verdict


async def test_agent_lightning_218_what_comes_after_the_end_changes_nothing(served):
    rollout_id = await served.make()
    await served.move(rollout_id, "running")
    await served.chat(rollout_id)
    await served.move(rollout_id, "succeeded")
    assert (await served.chat(rollout_id)).status_code == 409
    assert (await served.move(rollout_id, "failed")).status_code == 409
    assert (await served.post(rollout_id, "reward", {"value": 1.0})).status_code == 200
    assert [event["data"] for event in await served.events(rollout_id, event_type="reward")] == [{"value": 1.0}]
    assert served.store.rollout(rollout_id).reward is None
    assert len(served.store.calls(rollout_id)) == 1


async def test_a_new_attempt_takes_the_place_of_the_earlier_one(served):
    rollout_id = await served.make()
    await served.chat(rollout_id, "first")
    await served.chat(rollout_id, "second", attempt="b")
    assert (await served.chat(rollout_id, "late")).status_code == 409
    await served.post(rollout_id, "reward", {"value": 1.0}, attempt="0")
    await served.post(rollout_id, "reward", {"value": 2.0}, attempt="b")
    await served.move(rollout_id, "running", last_attempt_id="b")
    kinds = [(event["event_type"], event["attempt_id"]) for event in await served.events(rollout_id)]
    assert kinds == [("model_request", "b"), ("reward", "b")]
    await served.move(rollout_id, "succeeded")
    rollout = served.store.rollout(rollout_id)
    assert (rollout.attempt, rollout.reward) == (2, 2.0)
    assert [call.attempt for call in served.store.calls(rollout_id)] == [1, 2]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("chat/completions", chat_body("hello", stream=True), '"content":"hello"'),
        ("completions", {"model": "any", "prompt": "[user]hello<end>", "stream": True}, '"text"'),
        ("responses", {"model": "any", "input": "hello", "store": False, "stream": True}, "response.completed"),
        ("messages", {"model": "any", "max_tokens": 9, "stream": True,
                      "messages": [{"role": "user", "content": "hello"}]}, "message_stop"),
    ],
)  # fmt: skip
async def test_every_protocol_of_the_gateway_works_streamed(served, path, body, words):
    rollout_id = await served.make()
    async with served.client() as client:
        response = await client.post(f"{proxy(rollout_id)}/{path}", json=body)
        models = await client.get(f"{proxy(rollout_id)}/models")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert words in response.text
    assert models.json()["data"][0]["id"] == "scripted"
    assert served.store.calls(rollout_id)[0].delivered


async def test_a_call_whose_reply_was_lost_has_nothing_to_train_on(serve):
    served = serve(lambda _: Say("half", error=RuntimeError("engine"), pieces=2))
    rollout_id = await served.make()
    assert (await served.chat(rollout_id)).status_code == 500
    [event] = await served.events(rollout_id, format="triplet")
    assert (event["data"]["status"], event["data"]["response_token_ids"]) == ("error", [])
    await served.move(rollout_id, "running")
    await served.move(rollout_id, "failed", error_message="subprocess exited with code 1")
    assert served.store.rollout(rollout_id).outcome is Outcome.POLICY_ERROR


async def test_an_agent_that_goes_away_ends_its_generation(serve):
    served = serve(lambda _: Say("never", hold=True))
    rollout_id = await served.make()
    async with served.client() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{proxy(rollout_id)}/chat/completions", json=chat_body(), timeout=0.3)
    await served.lab.until(lambda: served.lab.policy.cancelled == 1)
    await served.lab.until(lambda: [c.kind for c in served.lab.calls(rollout_id)] == ["undelivered"])


async def test_an_answer_that_breaks_off_breaks_off_here_too(serve):
    served = serve(lambda _: Say("x", hold=True, error=RuntimeError("engine")), patience=HASTY)
    rollout_id = await served.make()
    async with served.client() as client:
        asked = asyncio.create_task(client.post(f"{proxy(rollout_id)}/chat/completions", json=chat_body()))
        await served.lab.until(lambda: served.lab.policy.running == 1)
        await asyncio.sleep(0.3)  # the headers are out
        served.lab.policy.release()
        with pytest.raises(httpx.RemoteProtocolError):
            await asked


async def test_a_pause_holds_and_lets_calls_under_way_go_on(serve):
    served = serve(lambda prompt: Say("slow", hold=True) if "slow" in prompt else echo(prompt))
    rollout_id = await served.make()
    async with served.client() as client:
        slow = asyncio.create_task(served.chat(rollout_id, "slow"))
        await served.lab.until(lambda: served.lab.policy.running == 1)
        paused = (await client.post("/proxy/pause", json={"reason": "update", "retry_after_seconds": 3})).json()
        assert paused == {"paused": True, "retry_after_seconds": 3, "reason": "update", "inflight": 1}
        held = asyncio.create_task(served.chat(rollout_id, "held"))
        await served.lab.until(lambda: served.lab.gateway.admission.held == 1)
        served.lab.policy.release()
        assert (await slow).json()["choices"][0]["message"]["content"] == "slow"
        await served.lab.until(lambda: served.lab.gateway.admission.in_flight == 0)
        assert (await client.get("/proxy/state")).json()["inflight"] == 0
        assert not held.done()
        assert (await client.post("/proxy/resume")).json()["paused"] is False
        assert (await held).json()["choices"][0]["message"]["content"] == "held"


async def test_a_resume_while_calls_are_still_under_way(serve):
    served = serve(lambda _: Say("slow", hold=True))
    rollout_id = await served.make()
    async with served.client() as client:
        slow = asyncio.create_task(served.chat(rollout_id))
        await served.lab.until(lambda: served.lab.policy.running == 1)
        await client.post("/proxy/pause", json={})
        await client.post("/proxy/pause", json={})
        assert (await client.post("/proxy/resume")).json()["paused"] is False
        served.lab.policy.release()
        assert (await slow).status_code == 200


async def test_who_may_come_in(served):
    rollout_id = await served.make()
    own = served.lab.access.key
    for headers in (
        {"x-none": "1"},
        {"authorization": "Bearer wrong"},
        {"x-api-key": own},
        {"authorization": KEY + "x"},
    ):
        async with served.client(**headers) as client:
            for path in ("/api/rollouts?state_in=queuing", "/proxy/state", "/nowhere"):
                response = await client.get(path)
                assert (response.status_code, response.json()) == (401, {"detail": "Invalid or missing API key"})
            assert (await client.post(f"{proxy(rollout_id)}/chat/completions", json=chat_body())).status_code == 401
            assert (await client.get("/healthz")).status_code == 200
    async with served.client(**{"x-api-key": KEY}) as client:
        assert (await client.get("/proxy/state")).status_code == 200
    async with served.client(**AUTH, host="evil.example") as client:
        assert (await client.get("/proxy/state")).status_code == 403
    async with httpx.AsyncClient(headers=AUTH) as client:
        url = f"{served.lab.gateway.url}/rollout/r-1/v1/chat/completions"
        assert (await client.post(url, json=chat_body())).status_code == 401


async def test_it_does_not_reach_rollouts_of_the_lab_itself(served):
    async with served.client() as client:
        for path in ("/api/rollouts/r-1", "/api/rollouts/r-1/events"):
            assert (await client.get(path)).status_code == 404
        assert (await client.post(f"{proxy('r-1')}/chat/completions", json=chat_body())).status_code == 404
        before = await served.lab.chat()
        assert before.status_code == 200, "its key still works"


async def test_an_id_of_the_labs_own_is_not_taken_over(served):
    rollout_id = await served.make(rollout_id="mine")
    own = replace(served.store.rollout(rollout_id), id="r-own", run_id="another")
    served.store.put_rollout(own).result()
    async with served.client() as client:
        response = await client.post("/api/rollouts", json=[{"input": 1, "rollout_id": "r-own"}])
    assert response.status_code == 409


@pytest.mark.parametrize(
    "body",
    [
        b'[{"input": "\\ud800"}]',
        b'[{"input": 123456789012345678901234567890}]',
        b'[{"input": 1, "rollout_id": "a/b"}]',
        b'[{"input": 1, "rollout_id": ""}]',
        b'[{"input": 1, "metadata": {"x": "\\udfff"}}]',
        b'[{"input": ' + b"[" * 240 + b"]" * 240 + b"}]",
    ],
)
async def test_what_cannot_be_stored_is_refused(served, body):
    async with served.client() as client:
        headers = {"content-type": "application/json"}
        assert (await client.post("/api/rollouts", content=body, headers=headers)).status_code == 422
        assert (await client.get("/api/rollouts?state_in=queuing")).json() == []


def test_a_body_that_is_too_large_is_refused_before_it_is_read(served):
    connection = http.client.HTTPConnection(served.server.url.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/api/rollouts")
    for name, value in {**AUTH, "content-length": str(10**9)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


async def test_deleting_ends_a_rollout_and_keeps_its_record(served):
    rollout_id = await served.make()
    await served.chat(rollout_id)
    async with served.client() as client:
        assert (await client.delete(f"/api/rollouts/{rollout_id}")).status_code == 204
        assert (await client.get(f"/api/rollouts/{rollout_id}")).status_code == 404
    assert served.store.rollout(rollout_id).state is RolloutState.CANCELLED
    assert len(served.store.calls(rollout_id)) == 1


async def test_closing_ends_what_is_open(served):
    rollout_id = await served.make()
    await served.move(rollout_id, "running")
    served.server.close()
    served.server.close()
    rollout = served.store.rollout(rollout_id)
    assert (rollout.state, rollout.outcome) == (RolloutState.CANCELLED, Outcome.CANCELLED)
    assert served.store.run(served.server.run_id).state == "finished"
    with pytest.raises(httpx.ConnectError):
        await served.move(rollout_id, "succeeded")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lightning-lab-agl")]


def test_a_port_in_use_is_named(served):
    port = int(served.server.url.rpartition(":")[2])
    second = AglServer(served.lab.gateway, served.store, model="m", port=port)
    with pytest.raises(GatewayError, match=f"cannot listen on 127.0.0.1:{port}"):
        second.start()
    second.close()


def test_the_key_is_shown_only_on_demand(served):
    assert KEY not in repr(served.server)
    assert re.search(rf"agl_server.url={served.server.url} agl_server.key={KEY}", served.server.instructions)


async def test_every_use_of_the_key_is_recorded_without_it(served):
    rollout_id = await served.make()
    await served.move(rollout_id, "running")
    assert (await served.chat(rollout_id)).status_code == 200
    async with served.client(**AUTH, **{"user-agent": f"controller {KEY}"}) as client:
        for _ in range(3):
            await client.get("/api/rollouts", params={"state_in": "queuing"})
        await client.post("/proxy/pause", json={})
        await client.post("/proxy/resume")
        await client.delete("/api/rollouts/none")
    async with served.client(authorization="Bearer wrong") as client:
        for path in ("/proxy/state", f"/{KEY}", "/api/models"):
            await client.get(path)
    await asyncio.to_thread(served.server.close)
    served.store.flush()
    events = [event for event in served.store.events() if event.kind == "control"]
    told = [(e.data["method"], e.data["route"], e.data["status"], e.data["count"], e.subject) for e in events]
    assert told == [
        ("POST", "/api/rollouts", 201, 1, ""),
        ("PATCH", f"/api/rollouts/{rollout_id}", 200, 1, rollout_id),
        ("GET", "/api/rollouts", 200, 1, ""),
        ("POST", "/proxy/pause", 200, 1, ""),
        ("POST", "/proxy/resume", 200, 1, ""),
        ("DELETE", "/api/rollouts/none", 204, 1, "none"),
        ("GET", "", 401, 1, ""),
        ("GET", "/api/rollouts", 200, 2, ""),
        ("GET", "", 401, 2, ""),
    ]
    assert {event.data["client"] for event in events} == {"127.0.0.1"}
    assert all(event.at > 0 and KEY not in str(event) for event in events)
    assert events[2].data["agent"] == "controller (key)"
