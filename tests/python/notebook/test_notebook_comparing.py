"""What the page that compares two runs asks for: which runs there are, their settings, and all of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_lab.notebook import frames
from lightning_lab.notebook.reading import reading_handlers
from lightning_lab.notebook.requests import Requests
from lightning_lab.notebook.token_text import looked_up
from lightning_lab.records import HarnessInfo, Rollout, RolloutState, Run, Step, Task
from lightning_lab.store import COMMON, Store

KEY = "sk-ant-" + "x" * 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite") as opened:
        for place, name in enumerate(("old", "new")):
            settings = {"lr": 10.0**-place, "note": KEY, "sampling": {"temperature": 1.0, "stop": ["a", "b"]}}
            run = Run(id=name, kind="fit", state="finished", settings=settings, created_at=float(place))
            opened.put_run(run)
        harness = HarnessInfo(name="h", version="v", kind="function")
        for i in range(300):
            opened.put_rollout(
                Rollout(
                    id=f"r-{i}", run_id="old", group_id="g", task=Task(id="t", prompt="?"), mode="train",
                    harness=harness, state=RolloutState.QUEUING, created_at=1.0,
                )
            )  # fmt: skip
        for i in range(30):
            metrics = {"reward": i / 30}
            step = Step(
                run_id="old", index=i, version=i + 1, rollout_ids=(), metrics=metrics, started_at=0, finished_at=1
            )
            opened.put_step(step)
        opened.flush()
        yield opened


def ask(store: Store, method: str, manifest: dict[str, Any] | None = None, **params: Any) -> Any:
    handlers = reading_handlers(lambda: store, looked_up({}), COMMON, lambda _: manifest or {})
    return Requests(handlers).answer({"id": 1, "method": method, "params": params}).data


def test_runs_are_listed_newest_first(store: Store) -> None:
    runs = ask(store, "runs")["result"]["runs"]
    assert [(run["id"], run["state"], run["rollouts"]) for run in runs] == [
        ("new", "finished", 0), ("old", "finished", 300),
    ]  # fmt: skip


def test_settings_are_texts_by_dotted_name_without_secrets(store: Store) -> None:
    manifest = {
        "hashes": {"model": "ab12"}, "packages": ["torch==2.9", "numpy==2.3"], "code": "never told",
        "git": {"commit": "c0ffee", "diff": "long"},
    }  # fmt: skip
    settings = ask(store, "settings", manifest, run="old")["result"]["settings"]
    assert settings["lr"] == "1.0" and settings["sampling.temperature"] == "1.0"
    assert settings["hashes.model"] == "ab12" and settings["packages.torch"] == "2.9" and settings["git"] == "c0ffee"
    assert "code" not in settings and KEY not in str(settings)


def test_a_run_comes_whole_in_as_many_answers_as_it_takes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_REPLY_BYTES", 12_000)
    handlers = reading_handlers(lambda: store, looked_up({}), COMMON, lambda _: {})
    requests, left, answers = Requests(handlers), True, 0
    rows: list[int] = []
    steps: list[int] = []
    while left:
        params = {"run": "old", "rows": len(rows), "steps": len(steps)}
        reply = requests.answer({"id": answers, "method": "run", "params": params})
        result, answers = reply.data["result"], answers + 1
        assert result["run"]["id"] == "old" and result["counters"]["total"] == 300
        place = next(column["buffer"] for column in result["rollouts"]["columns"] if column["name"] == "row")
        rows += memoryview(reply.buffers[place]).cast("i").tolist()
        steps += [step["index"] for step in result["steps"]["rows"]]
        left = result["left"]
    assert (rows, steps) == (list(range(300)), list(range(30))) and answers > 2


def test_what_is_not_there_is_refused_by_name(store: Store) -> None:
    assert "no run 'gone'" in ask(store, "run", run="gone")["error"]["message"]
    assert "no run 'gone'" in ask(store, "settings", run="gone")["error"]["message"]
    assert "from a place" in ask(store, "run", run="old", rows=-1)["error"]["message"]
