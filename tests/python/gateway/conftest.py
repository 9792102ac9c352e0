"""A gateway for every test: real server, real store; only the model is scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gateway_lab
import pytest
from gateway_lab import Lab, Script, echo

from lightning_lab.gateway import Gateway
from lightning_lab.store import Store


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need fetched tokenizers run where they are asked for; elsewhere pytest counts them as deselected."""
    if "tokenizers" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("tokenizers")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


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
