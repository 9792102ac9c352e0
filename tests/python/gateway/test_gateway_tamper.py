"""A rollout's key opens its model routes and nothing else; whoever tries more is refused, and that is recorded."""

from __future__ import annotations

import httpx
from gateway_lab import chat_body

from lightning_lab.gateway import tamper
from lightning_lab.gateway.process import GatewayProcess
from lightning_lab.records import HarnessInfo, Rollout, RolloutState, Task
from lightning_lab.store import Store


def store_rollout(store: Store, rollout_id: str = "r-1") -> Rollout:
    harness = HarnessInfo(name="h", version="1", kind="function")
    rollout = Rollout(
        id=rollout_id, run_id="run", group_id="g", task=Task(id="t", prompt="p"), harness=harness, mode="train",
        state=RolloutState.RUNNING,
    )  # fmt: skip
    store.put_rollout(rollout).result()
    return rollout


def tries(store: Store) -> list[tuple[str, str, str, int]]:
    store.flush()
    events = store.events(run_id="run", kind="tamper")
    return [(event.subject, event.data["what"], event.data["path"], event.data["status"]) for event in events]


async def send(url: str, key: str, method: str = "POST") -> int:
    async with httpx.AsyncClient() as client:
        return (
            await client.request(method, url, json={"value": 1.0}, headers={"authorization": f"Bearer {key}"})
        ).status_code


AIMS = {
    "/v1/rewards": "reward",
    "/reward": "reward",
    "/api/rollouts/r-1/attempt/0/events": "reward",
    "/api/rollouts": "control",
    "/v1/pause": "control",
    "/proxy/resume": "control",
}


async def test_a_reward_or_an_order_with_a_rollouts_key_is_refused_and_recorded(lab):
    store_rollout(lab.store)
    for path in AIMS:
        assert await send(lab.access.url + path, lab.access.key) == 404
        assert await send(lab.gateway.url + path, lab.access.key) == 404
    both = [(what, url) for path, what in AIMS.items() for url in (f"/rollout/r-1{path}", path)]
    assert tries(lab.store) == [("r-1", what, url, 404) for what, url in both]
    first = lab.store.events(kind="tamper")[0].data
    assert first["attempt"] == 1 and first["message"].endswith("POST /rollout/r-1/v1/rewards was refused (404).")


async def test_another_rollout_is_out_of_reach(lab):
    store_rollout(lab.store)
    other = lab.open("r-2")
    async with lab.client() as client:
        for url in (other.url, lab.gateway.url + "/rollout/r-none"):
            await client.post(f"{url}/v1/chat/completions", json=chat_body())
        headers = {"x-lightning-lab-rollout": "r-2"}
        await client.post(f"{lab.gateway.url}/v1/chat/completions", json=chat_body(), headers=headers)
    assert [(who, what, status) for who, what, _, status in tries(lab.store)] == [
        ("r-1", "other_rollout", 403),
        ("r-1", "other_rollout", 404),
        ("r-1", "other_rollout", 403),
    ]
    assert lab.calls("r-2") == []


async def test_the_key_of_a_rollout_that_has_ended_is_known_still(lab):
    store_rollout(lab.store)
    lab.gateway.close_rollout("r-1")
    await send(lab.access.url + "/reward", lab.access.key)
    assert [who for who, *_ in tries(lab.store)] == ["r-1"]


async def test_what_clients_do_by_themselves_is_no_tampering(lab):
    store_rollout(lab.store)
    async with lab.client() as client:
        await client.post("/chat/completions", json=chat_body())
        await client.post("/embeddings", json={})
        await client.get("/files")
        await client.get("/chat/completions")
        await client.head(lab.access.url + "/api/hello")
        await client.post("/chat/completions", json=chat_body(), headers={"x-api-key": "another"})
    await send(lab.access.url + "/reward", "a wrong key")
    assert tries(lab.store) == []


async def test_trying_without_end_fills_no_disk(lab, monkeypatch):
    monkeypatch.setattr(tamper, "_LIMIT", 3)
    store_rollout(lab.store)
    for _ in range(5):
        await send(lab.access.url + "/reward" + "x" * 5000 + "/reward", lab.access.key)
    assert [len(path) for _, _, path, _ in tries(lab.store)] == [200] * 3


async def test_agent_lightnings_port_is_closed_to_the_labs_agents(served):
    store_rollout(served.store)
    rollout_id = await served.make()
    path = f"/api/rollouts/{rollout_id}/attempt/0/events"
    assert await send(served.server.url + path, served.lab.access.key) == 401
    assert await send(served.server.url + "/proxy/pause", served.lab.access.key) == 401
    assert await send(served.server.url + "/proxy/pause", "nobody's") == 401
    assert tries(served.store) == [("r-1", "reward", path, 401), ("r-1", "control", "/proxy/pause", 401)]
    assert not served.lab.gateway.admission.paused


async def test_a_rollout_of_the_lab_is_rewarded_once(served):
    rollout = store_rollout(served.store)
    ended = served.server.hand_out(rollout, {}, sampling=None, must_reward=True)
    await served.move("r-1", "running")
    await served.chat("r-1")
    assert (await served.post("r-1", "reward", {"value": None})).status_code == 200
    assert (await served.post("r-1", "reward", {"value": 0.25})).status_code == 200
    assert (await served.post("r-1", "reward", {"value": 0.25})).status_code == 200
    assert (await served.post("r-1", "reward", {"value": 1.0})).status_code == 409
    assert [who_what[:2] for who_what in tries(served.store)] == [("r-1", "second_reward")]
    await served.move("r-1", "succeeded")
    assert ended.result(10).reward == 0.25
    rewards = await served.events("r-1", event_type="reward")
    assert [event["data"]["value"] for event in rewards] == [None, 0.25]


async def test_a_gateway_in_a_process_of_its_own_records_it_too(tmp_path):
    from gateway_lab import ScriptedPolicy, echo

    gateway = GatewayProcess(ScriptedPolicy(echo), tmp_path / "store.sqlite")
    store = Store(tmp_path / "store.sqlite", writer=gateway.writer)
    try:
        gateway.start()
        store_rollout(store)
        access = gateway.open_rollout("r-1")
        await send(access.url + "/reward", access.key)
        gateway.report("POST", "/proxy/pause", [(b"x-api-key", access.key.encode())], 401)
        assert [what for _, what, _, _ in tries(store)] == ["reward", "control"]
    finally:
        gateway.close()
        store.close()
        gateway.end()
