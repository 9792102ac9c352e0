"""What agents import by themselves is imported once, in the fork server, for those that follow."""

from __future__ import annotations

import json
import os
import sys
import threading

import pytest

from lightning_lab.controller import late_imports
from lightning_lab.records import Outcome

RARE = "wsgiref.simple_server"


def imports_late(task):
    import importlib
    import sys

    had = RARE in sys.modules
    importlib.import_module(RARE)
    return had


def test_the_next_agents_find_what_the_first_imported_late(bench):
    harness = bench.harness(imports_late)
    assert json.loads(bench.run(harness).output) is False
    assert bench.wait_until(lambda: json.loads(bench.run(harness).output) is True)


def test_the_users_own_modules_stay_with_the_agent(bench, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_late_module.py").write_text("import os; LOADED_BY = os.getpid()")

    def agent(task):
        import importlib
        import os

        return os.getpid() == importlib.import_module("own_late_module").LOADED_BY

    assert [json.loads(bench.run(bench.harness(agent)).output) for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("claim", [None, "os", {"a": 1}, [1, None, "no such module", "../evil", "a;b"]])
def test_a_claim_that_is_no_list_of_names_teaches_nothing(claim):
    assert late_imports.names_in(claim) == []


@pytest.mark.parametrize(
    "source",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "import os; os._exit(3)",
    ],
    ids=["starts a thread", "ends the process"],
)
def test_a_module_that_does_harm_is_tried_elsewhere_and_left_out(source, tmp_path, monkeypatch):
    (tmp_path / "harmful_late_module.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(late_imports, "_INSTALLED", (f"{tmp_path}{os.sep}",))
    before = threading.enumerate()
    late_imports.import_all(["harmful_late_module"])
    assert "harmful_late_module" not in sys.modules
    assert not [thread for thread in threading.enumerate() if "sleep" in thread.name and thread not in before]


def test_agents_go_on_while_their_fork_server_learns(bench):
    harness = bench.harness(imports_late)
    futures = [bench.controller.submit(bench.rollout(harness), harness, None) for _ in range(12)]
    assert {future.result(30).outcome for future in futures} == {Outcome.COMPLETED}
