"""Agent Lightning's routes under test: real server over a real gateway."""

from __future__ import annotations

from typing import Any

import httpx
from gateway_lab import Lab, chat_body

from lightning_lab.gateway.agl import AglServer
from lightning_lab.store import Store

KEY = "agl-test-key"
AUTH = {"authorization": f"Bearer {KEY}"}


class Served:
    """A gateway with Agent Lightning's routes beside it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.server = AglServer(lab.gateway, lab.store, model="scripted", key=KEY)
        self.server.start()

    @property
    def store(self) -> Store:
        return self.lab.store

    def client(self, **headers: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.server.url, headers=headers or AUTH, timeout=30)

    async def make(self, **fields: Any) -> str:
        """Queue one rollout; its id."""
        async with self.client() as client:
            created = await client.post("/api/rollouts", json=[{"input": {"prompt": "2+2"}, **fields}])
        return str(created.json()[0]["rollout_id"])

    async def move(self, rollout_id: str, state: str, **more: str) -> httpx.Response:
        async with self.client() as client:
            return await client.patch(f"/api/rollouts/{rollout_id}", json={"status": {"state": state, **more}})

    async def chat(self, rollout_id: str, text: str = "hello", *, attempt: str = "0", **fields: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.post(f"{proxy(rollout_id, attempt)}/chat/completions", json=chat_body(text, **fields))

    async def post(self, rollout_id: str, kind: str, data: Any, attempt: str = "0") -> httpx.Response:
        async with self.client() as client:
            path = f"/api/rollouts/{rollout_id}/attempt/{attempt}/events"
            return await client.post(path, json={"event_type": kind, "data": data})

    async def events(self, rollout_id: str, **params: str) -> list[dict[str, Any]]:
        async with self.client() as client:
            response = await client.get(f"/api/rollouts/{rollout_id}/events", params=params)
        events: list[dict[str, Any]] = response.json()
        return events


def proxy(rollout_id: str, attempt: str = "0", mode: str = "train") -> str:
    return f"/proxy/rollout/{rollout_id}/attempt/{attempt}/mode/{mode}/openai/v1"
