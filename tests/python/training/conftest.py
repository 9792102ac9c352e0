from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from training_fakes import Agents, Bandit, FakeLab, Gate, agent, make_tasks, right_token

from lightning_lab.records import Run
from lightning_lab.store import RunFolder, Store
from lightning_lab.training import TrainConfig, TrainingLoop


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[FakeLab]:
    store = Store(tmp_path / "store.sqlite")
    policy, gate = Bandit(), Gate()
    controller = Agents(store, policy, gate)
    yield FakeLab(policy, store, gate, controller, RunFolder.create(tmp_path, settings={}, run_id="run"))
    controller.close()
    store.close()


@pytest.fixture
def make_loop(lab: FakeLab) -> Callable[..., TrainingLoop]:
    def make(*, tasks: int = 10, loop: dict[str, Any] | None = None, **settings: Any) -> TrainingLoop:
        config = TrainConfig(**{"steps": 3, "n": 4, "groups": 2, "learning_rate": 1.0, **settings})
        run = Run(id="run", kind="fit", state="running", settings=config.settings(), created_at=1.0)
        return TrainingLoop(lab, run, agent, make_tasks(tasks), right_token, config, **(loop or {}))

    return make
