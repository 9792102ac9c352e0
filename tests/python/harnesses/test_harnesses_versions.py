"""Harnesses: how they are made and what counts in their version."""

from __future__ import annotations

import json
import linecache
import pickle
import threading

import pytest

import lightning_lab as ll
from lightning_lab.harnesses import Harness, HarnessError
from lightning_lab.harnesses.shipping import ShippingError, ship
from lightning_lab.harnesses.source import cell_sources, referred_modules
from lightning_lab.records import Task

TASK = Task(id="t-1", prompt="say hi", answer="hi", fields={"level": 3, "place": "home"})


def run_cell(text, number=1, **names):
    """Define what a notebook cell defines; the source is where IPython puts it."""
    file = f"/tmp/ipykernel_1/{number}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = {"__name__": "__main__", "ll": ll, **names}
    exec(compile(text, file, "exec"), namespace)
    return namespace


def test_the_decorator_with_and_without_arguments():
    @ll.harness
    def plain(task):
        return task.prompt

    @ll.harness(name="other", preload=["json"], timeout_s=5, env={"A": "1"})
    async def full(task):
        return task.prompt

    assert (plain.name, plain.kind, plain.timeout_s, plain.preload) == ("plain", "function", 300.0, ())
    assert (full.name, full.timeout_s, full.preload, dict(full.env)) == ("other", 5.0, ("json",), {"A": "1"})
    assert plain(TASK) == "say hi"
    assert plain.info == ll.records.HarnessInfo(
        name="plain", version=plain.version, kind="function", source=plain.source
    )


def test_a_class_makes_a_fresh_instance_for_every_task():
    @ll.harness
    class Counter:
        def __init__(self):
            self.count = 0

        def __call__(self, task):
            self.count += 1
            return self.count

    assert [Counter(TASK), Counter(TASK)] == [1, 1]
    assert Counter.name == "Counter" and "self.count = 0" in Counter.source


def test_a_redefined_cell_is_a_new_version_and_an_equal_one_is_not():
    first = run_cell("@ll.harness\ndef solver(task):\n    return 1\n", 1)["solver"]
    again = run_cell("@ll.harness\ndef solver(task):\n    return 1\n", 2)["solver"]
    other = run_cell("@ll.harness\ndef solver(task):\n    return 2\n", 3)["solver"]
    assert first.source == "@ll.harness\ndef solver(task):\n    return 1\n"
    assert first.version == again.version != other.version


def test_without_source_the_bytecode_counts():
    def make(text):
        namespace = {}
        exec(text, namespace)
        return ll.harness(namespace["solver"])

    one, same, two = (make(f"def solver(task): return (lambda: {value})()") for value in ("'a'", "'a'", "'b'"))
    assert one.source == ""
    assert one.version == same.version != two.version


def test_settings_count_in_the_version():
    def solver(task):
        return 1

    versions = {ll.harness(**options)(solver).version for options in ({}, {"timeout_s": 5}, {"env": {"A": "1"}})}
    assert len(versions) == 3


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_timeout_must_be_positive(timeout_s):
    with pytest.raises(HarnessError, match="above 0"):
        ll.harness(timeout_s=timeout_s)(lambda task: 1)


def test_mistakes_are_named():
    with pytest.raises(HarnessError, match="function of one argument"):
        ll.harness(3)
    with pytest.raises(HarnessError, match=r'preload=\["agents"\]'):
        ll.harness(preload="agents")(lambda task: 1)
    with pytest.raises(HarnessError, match="harness already"):
        ll.harness(ll.harness(lambda task: 1))
    with pytest.raises(HarnessError, match="list of arguments"):
        Harness.command("python agent.py")
    with pytest.raises(HarnessError, match="preload is for functions"):
        Harness.command(["true"], preload=["agents"])
    with pytest.raises(HarnessError, match="is a command"):
        Harness.command(["true"])(TASK)


def test_a_command_fills_in_fields_and_nothing_else():
    command = Harness.command(["run", "{prompt}", "--at={place}/{id}", '{"json": true}', "{unknown} stays"])
    assert command.arguments(TASK) == ["run", "say hi", "--at=home/t-1", '{"json": true}', "{unknown} stays"]
    with pytest.raises(HarnessError, match=r"uses \{promt\}; the task has id, level, place, prompt"):
        Harness.command(["run", "{promt}"]).arguments(TASK)


def test_a_field_value_is_never_filled_in_again():
    task = Task(id="t", prompt="{id} {answer}", answer="secret")
    assert Harness.command(["run", "{prompt}"]).arguments(task) == ["run", "{id} {answer}"]


def test_a_script_of_a_command_counts_in_its_version(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text("print(1)")
    first = Harness.command(["python", "agent.py"])
    (tmp_path / "agent.py").write_text("print(2)")
    second = Harness.command(["python", "agent.py"])
    assert first.argv == ("python", str(tmp_path / "agent.py")) and first.name == "python"
    assert first.version != second.version
    assert json.loads(first.source) == ["python", "agent.py"]


def test_what_cannot_be_shipped_is_named():
    cell = run_cell("import threading\nlock = threading.Lock()\ndef solver(task):\n    with lock: return 1\n")
    with pytest.raises(ShippingError, match=r"Harness solver .* 'lock' \(a lock\) cannot be pickled"):
        ship(cell["solver"], TASK, what="Harness solver")
    with pytest.raises(ShippingError, match="its argument Task"):
        ship(lambda task: 1, Task(id="t", prompt="p", answer=threading.Lock()), what="Harness")


def test_a_shipped_cell_function_keeps_its_globals_and_its_file():
    cell = run_cell("PROMPT = 'hi'\ndef helper(): return PROMPT\ndef solver(task): return helper() + task.id\n", 7)
    function, task = pickle.loads(ship(cell["solver"], TASK, what="Harness"))
    assert function(task) == "hit-1"
    assert function.__code__.co_filename == "/tmp/ipykernel_1/7.py"
    assert "def helper()" in cell_sources(cell["solver"])["/tmp/ipykernel_1/7.py"]


def test_modules_behind_a_function_are_found():
    import numpy as np

    cell = run_cell("def helper(): return np.zeros(1)\ndef solver(task): return helper(), Task\n", np=np, Task=Task)
    assert referred_modules(cell["solver"]) == ("numpy",)


@pytest.mark.parametrize("prompt", ["x" * 131072, "ü" * 65536, "a\0b"])
def test_a_prompt_that_linux_cannot_pass_is_refused_with_advice(prompt):
    echo = Harness.command(["echo", "{prompt}"])
    with pytest.raises(HarnessError, match="Give long texts as files"):
        echo.arguments(Task(id="t", prompt=prompt))
    assert echo.arguments(Task(id="t", prompt="x" * 131071))
