"""A gateway for every test: real server, real store; only the model is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gateway_lab
import pytest
from gateway_agl import Served
from gateway_lab import Lab, Script, echo
from gateway_upstream import HELLO, KEY, QUICK, Upstream, events

from lightning_lab.gateway import Gateway
from lightning_lab.policy.openai import OpenAIPolicy
from lightning_lab.policy.openai.endpoint import Patience
from lightning_lab.store import Store


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Starts gateways: ``make_lab(script, **gateway options)``."""
    opened: list[Lab] = []

    def make(script: Script = echo, *, policy: Mapping[str, Any] | None = None, **options: Any) -> Lab:
        scripted = gateway_lab.make_policy(script, **(policy or {}))
        store = Store(tmp_path / f"store{len(opened)}.sqlite")
        gateway = Gateway(scripted, store, **options)
        gateway.start()
        opened.append(Lab(gateway, scripted, store, gateway.open_rollout("r-1")))
        return opened[-1]

    yield make
    for lab in opened:
        lab.policy.release()
        lab.gateway.close()
        lab.store.close()


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """A gateway whose model repeats the last message."""
    return make_lab()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    server = Upstream()
    runner = await server.start()
    server.say(events(*HELLO))
    yield server
    await runner.cleanup()


@pytest.fixture
async def make_front(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Callable[..., Lab]]:
    """Starts a gateway in front of the upstream."""
    opened: list[Lab] = []

    def make(patience: Patience = QUICK, **options: Any) -> Lab:
        policy = OpenAIPolicy(upstream.url, "m", api_key=KEY, patience=patience)
        store = Store(tmp_path / "store.sqlite")
        gateway = Gateway(policy, store, **options)
        gateway.start()
        opened.append(Lab(gateway, policy, store, gateway.open_rollout("r-1")))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for lab in opened:
        lab.gateway.close()
        lab.policy.close()
        lab.store.close()


@pytest.fixture
def front(make_front: Callable[..., Lab]) -> Lab:
    return make_front()


@pytest.fixture
def serve(make_lab: Callable[..., Lab]) -> Iterator[Callable[..., Served]]:
    opened: list[Served] = []

    def make(*arguments: Any, **options: Any) -> Served:
        opened.append(Served(make_lab(*arguments, **options)))
        return opened[-1]

    yield make
    for served in opened:
        served.lab.policy.release()
        served.server.close()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    return serve()
