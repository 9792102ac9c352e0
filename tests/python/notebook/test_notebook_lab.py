"""Lab, Trainer and runs in a plain process, inside a running event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from notebook_kernels import REPOSITORY, is_alive, own_children, wait_until
from notebook_standin import StandInPolicy, asker, says_yes, tasks

import lightning_lab as ll
from lightning_lab.gateway import GatewayError
from lightning_lab.harnesses import Harness
from lightning_lab.notebook import (
    GraderError,
    HarnessError,
    Lab,
    LabBusyError,
    LabClosedError,
    RolloutError,
    RunFailedError,
    Trainer,
)
from lightning_lab.policy.base import PolicyError
from lightning_lab.records import Outcome, RolloutState, Sampling
from lightning_lab.store import RunFolder, StoreError
from lightning_lab.training import ConfigError

OpenLab = Callable[..., Lab]


def trainer(lab: Lab, harness: Any = asker, grader: Any = says_yes, **options: Any) -> Trainer:
    return Trainer(lab, harness, tasks(), grader, **{"n": 2, "groups": 2, **options})


# -- opening and closing ----------------------------------------------------------------------------------------------


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "pandas", "fastapi")
    code = f"import lightning_lab, sys; print([name for name in {heavy} if name in sys.modules])"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"


def test_opening_a_lab_with_another_policy_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; import lightning_lab as ll; from notebook_standin import *\n"
        "lab = ll.Lab(StandInPolicy()); lab.close(); print('torch' in sys.modules)"
    )
    paths = os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, check=True
    )
    assert done.stdout.strip() == "False"


async def test_agents_work_outside_the_project_and_leave_nothing(open_lab: OpenLab, tmp_path: Path) -> None:
    """Coding agents read the instructions that they find in the folders above."""
    lab = open_lab()
    where = Path((await lab.run(ll.harness(name="where")(lambda task: str(Path.cwd())), tasks()[0])).output)
    assert where.name == "work"
    assert not where.is_relative_to(tmp_path)
    root = next(parent for parent in where.parents if parent.name.startswith("lightning-lab-"))
    assert root.is_dir()
    lab.close()
    assert not root.exists()


async def test_equal_arguments_give_the_open_lab_and_others_replace_an_idle_one(open_lab: OpenLab) -> None:
    policy = StandInPolicy()
    lab = open_lab(policy, sampling=Sampling(temperature=0.5))
    assert open_lab(policy=policy, sampling=Sampling(temperature=0.5)) is lab
    other = open_lab(policy, sampling=Sampling(temperature=0.7))
    assert other is not lab and lab.closed and not other.closed


def test_policy_descriptions_are_compared_by_value() -> None:
    assert ll.Policy.torch("quickstart", seed=1, max_batch=8) == ll.Policy.torch("quickstart", max_batch=8, seed=1)
    assert ll.Policy.torch("quickstart") != ll.Policy.torch("quickstart", seed=1)


async def test_a_busy_lab_refuses_to_be_replaced_and_names_the_run(open_lab: OpenLab) -> None:
    lab = open_lab(StandInPolicy(delay_s=0.3))
    run = trainer(lab).fit(steps=50)
    with pytest.raises(LabBusyError, match=f"{run.id}.*run.stop"):
        open_lab(StandInPolicy("other"))
    with pytest.raises(LabBusyError, match=run.id):
        trainer(lab).fit(steps=1)
    assert not lab.closed and run.state == "running"
    run.cancel()
    await run
    assert run.state == "stopped"


async def test_closing_ends_the_run_and_leaves_its_record_readable(open_lab: OpenLab) -> None:
    lab = open_lab(StandInPolicy(delay_s=30))
    run = trainer(lab).fit(steps=3)
    wait_until(lambda: lab.status.running, "agents to run")
    port = int(lab.url.rsplit(":", 1)[1])
    wait_until(lambda: psutil.Process().children(recursive=True), "their processes to be there")
    children = psutil.Process().children(recursive=True)
    lab.close()
    lab.close()
    await run
    assert not any(is_alive(child) for child in children)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert run.state == "stopped"
    assert set(run.rollouts()["state"]) == {"cancelled"}
    assert repr(lab).startswith("Lab(closed") and "stopped" in repr(run)
    with pytest.raises(LabClosedError, match=r"ll\.Lab"):
        await lab.run(asker, tasks()[0])
    with pytest.raises(LabClosedError):
        trainer(lab).fit(steps=1)


async def test_the_lab_says_that_it_is_unsandboxed(open_lab: OpenLab) -> None:
    assert repr(open_lab()).count("unsandboxed") == 1


# -- starts that fail -------------------------------------------------------------------------------------------------


def test_without_a_free_port_the_start_fails_by_name_and_leaves_nothing(
    open_lab: OpenLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(98, "Address already in use")

    policy = StandInPolicy()
    with monkeypatch.context() as patched:
        patched.setattr("lightning_lab.gateway.server.socket.socket.bind", refuse)
        with pytest.raises(GatewayError, match="cannot listen"):
            open_lab(policy)
    assert policy.closed
    assert not list((tmp_path / "runs").iterdir())
    assert not own_children()
    open_lab()


def test_a_policy_that_cannot_start_leaves_nothing(open_lab: OpenLab, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="out of memory"):
        open_lab(StandInPolicy(fail="out of memory"))
    assert not (tmp_path / "runs").exists()


def test_a_missing_model_directory_is_named(open_lab: OpenLab, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no-such-model"):
        open_lab(ll.Policy.torch(tmp_path / "no-such-model"))


def test_a_runs_folder_that_cannot_be_made_is_named(open_lab: OpenLab, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="file"):
        open_lab(runs=tmp_path / "file")


# -- lab.run ----------------------------------------------------------------------------------------------------------


async def test_a_rollout_without_a_trainer(open_lab: OpenLab) -> None:
    lab = open_lab()
    rollout = await lab.run(asker, tasks()[0], grader=says_yes)
    assert (rollout.state, rollout.reward, rollout.output) == ("succeeded", 1.0, "yes")
    assert rollout.call(0).messages[-1].content == "Is 0 a number?"
    with pytest.raises(IndexError, match="no call 3"):
        rollout.call(3)
    assert "succeeded, reward 1" in repr(rollout)
    assert "Is 0 a number?" in rollout._repr_mimebundle_()["text/html"]
    ungraded = await lab.run(asker, "a prompt as text")
    assert ungraded.reward is None and ungraded.state == "succeeded"
    frame = lab.rollouts()
    assert list(frame.index) == [rollout.id, ungraded.id]
    assert frame.loc[rollout.id, "tokens"] == 4 and set(frame["mode"]) == {"single"}
    assert lab.status.run == rollout.record.run_id


@ll.harness
def raiser(task: Any) -> str:
    raise ValueError(f"cannot do {task.prompt}")


@ll.harness(preload=["no_module_of_this_name"])
def needs_a_missing_module(task: Any) -> str:
    return ""


@ll.harness
def silent(task: Any) -> str:
    return "yes"


@ll.harness(timeout_s=0.5)
def sleeper(task: Any) -> str:
    import time

    time.sleep(60)
    return ""


async def test_the_agents_traceback_is_raised(open_lab: OpenLab) -> None:
    lab = open_lab()
    with pytest.raises(HarnessError, match="ValueError: cannot do Is 0 a number") as caught:
        await lab.run(raiser, tasks()[0], grader=says_yes)
    assert "Traceback" in str(caught.value) and "raiser" in str(caught.value)
    assert caught.value.rollout.outcome is Outcome.AGENT_ERROR
    assert caught.value._render_traceback_() == [f"HarnessError: {caught.value}"]


async def test_agents_that_fail_otherwise_are_named(open_lab: OpenLab) -> None:
    lab = open_lab()
    with pytest.raises(RolloutError, match="no_module_of_this_name"):
        await lab.run(needs_a_missing_module, tasks()[0], grader=says_yes)
    with pytest.raises(HarnessError, match="timeout"):
        await lab.run(sleeper, tasks()[0], grader=says_yes)
    assert (await lab.run(silent, tasks()[0], grader=says_yes)).calls() == []


@ll.grader
def gives_none(task: Any, result: Any) -> None:
    return None


@ll.grader
def gives_nan(task: Any, result: Any) -> float:
    return float("nan")


@ll.grader
def gives_text(task: Any, result: Any) -> str:
    return "good"


@ll.grader(timeout_s=0.5)
def never_ends(task: Any, result: Any) -> float:
    import time

    time.sleep(60)
    return 1.0


async def test_graders_that_give_no_number_are_named(open_lab: OpenLab) -> None:
    lab = open_lab()
    for grader in (gives_none, gives_nan, gives_text, never_ends):
        with pytest.raises(GraderError, match=grader.name) as caught:
            await lab.run(silent, tasks()[0], grader=grader)
        assert caught.value.rollout.reward is None


async def test_forgotten_decorators_are_named(open_lab: OpenLab) -> None:
    lab = open_lab()
    with pytest.raises(TypeError, match=r"@ll\.harness"):
        await lab.run(lambda task: "", tasks()[0])
    with pytest.raises(TypeError, match=r"@ll\.grader"):
        await lab.run(silent, tasks()[0], grader=lambda task, result: 1.0)
    with pytest.raises(TypeError, match="task"):
        await lab.run(silent, 3)


async def test_an_interrupted_wait_leaves_the_rollout_running(open_lab: OpenLab) -> None:
    lab = open_lab(StandInPolicy(delay_s=0.5))
    waiting = asyncio.create_task(lab.run(asker, tasks()[0], grader=says_yes))
    await _until(lambda: lab.status.running)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await _until(lambda: lab.store.rollouts(state=RolloutState.SUCCEEDED))


async def _until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the condition is another thread's
            await asyncio.sleep(0.02)


async def test_a_command_is_a_harness_too(open_lab: OpenLab) -> None:
    command = Harness.command([sys.executable, "-c", "import sys; print('yes', end='')", "{prompt}"], name="command")
    assert (await open_lab().run(command, tasks()[0], grader=says_yes)).reward == 1.0


# -- training ---------------------------------------------------------------------------------------------------------


async def test_fit_returns_at_once_and_the_run_can_be_read_and_shared(open_lab: OpenLab, tmp_path: Path) -> None:
    lab = open_lab()
    run = trainer(lab, n=4, groups=1, held_out=tasks(3), eval_every=2).fit(steps=2)
    assert run.state == "running" and lab.active_run is run and not run.done
    assert await run is run
    assert run.state == "finished" and lab.active_run is None and run.done
    steps = run.steps()
    assert list(steps.index) == [0, 1] and set(steps["rollouts"]) == {4} and list(steps["version"]) == [1, 2]
    train = run.rollouts(step=1)
    assert len(train) == 4 and train["weight"].sum() == pytest.approx(1.0)
    assert len(run.rollouts(mode="eval")) == 6
    assert run.settings["harness"] == "asker" and run.settings["steps"] == 2
    figure = run.figure()
    assert [trace.name for trace in figure.data] == ["train", "held-out", "entropy"]
    assert list(figure.data[1].x) == [0, 2]
    manifest = run.manifest
    assert manifest["harness"]["version"] == asker.version and "urllib" in manifest["harness"]["source"]
    assert manifest["seeds"] == {"train": 0} and manifest["hashes"]["dataset"] and manifest["hashes"]["model"]
    folder = RunFolder.open(lab.path.parent / run.id)
    consumed = {row["rollout_id"] for row in folder.step(1)["rows"]}
    assert consumed <= set(train.index) and ll.load(folder.store_path).rollouts(step=1).equals(train)

    loaded = ll.load(run.export(tmp_path / "shared.llab"))
    lab.close()
    assert loaded.id == run.id and loaded.state == "finished"
    assert loaded.rollouts(step=1).equals(train)
    assert "step 2 of 2" in loaded._repr_mimebundle_()["text/html"]
    assert "Is " in loaded.view("rollout", train.index[0])._repr_mimebundle_()["text/html"]
    assert "step 2 of 2" in repr(loaded.view())
    assert loaded.rollout(train.index[0]).call(0).reply.content in ("yes", "no")


async def test_a_run_stops_after_the_step_under_way(open_lab: OpenLab) -> None:
    lab = open_lab(StandInPolicy(delay_s=0.1))
    run = trainer(lab).fit(steps=1000)
    await _until(lambda: lab.status.running)
    run.stop()
    await run
    assert run.state == "stopped" and len(run.steps()) == 1 and "Stopped on request" in run.record.reason
    again = trainer(lab).fit(steps=1)
    await again
    assert again.state == "finished"


async def test_a_run_whose_agent_always_fails_ends_with_that_error_in_the_cell(open_lab: OpenLab) -> None:
    run = trainer(open_lab(), raiser).fit(steps=5)
    with pytest.raises(RunFailedError, match="ValueError: cannot do"):
        await run
    assert run.state == "failed" and "cannot do" in run._repr_mimebundle_()["text/html"]


async def test_an_interrupted_wait_leaves_the_run_training(open_lab: OpenLab) -> None:
    run = trainer(open_lab(StandInPolicy(delay_s=0.05))).fit(steps=3)
    waiting = asyncio.create_task(run.wait())
    await asyncio.sleep(0.2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not run.done
    await run
    assert run.state == "finished"


async def test_evaluation_trains_nothing(open_lab: OpenLab) -> None:
    lab = open_lab()
    fitted = trainer(lab)
    before = await fitted.evaluate(tasks(4), n=2)
    assert before.n == 8 and 0 <= before.mean <= 1 and before.stderr > 0
    run = fitted.fit(steps=1)
    await run
    version = lab.status.version
    await fitted.evaluate(tasks(3))
    assert len(run.rollouts(mode="eval")) == 3 and lab.status.version == version
    assert list(run.figure().data[1].x) == [1]


async def test_wrong_settings_are_refused_before_any_rollout(open_lab: OpenLab) -> None:
    lab = open_lab()
    with pytest.raises(ConfigError, match="learning_rate"):
        trainer(lab, learning_rate=-1)
    with pytest.raises(TypeError, match="learning_rat"):
        trainer(lab, learning_rat=1)
    with pytest.raises(ConfigError, match="steps"):
        trainer(lab).fit(steps=0)
    assert lab.rollouts().empty and lab.active_run is None


async def test_views_say_what_is_missing(open_lab: OpenLab, capsys: pytest.CaptureFixture[str]) -> None:
    lab = open_lab()
    assert "nothing has run yet" in repr(lab.view("run"))
    with pytest.raises(ValueError, match="Which rollout"):
        lab.view("rollout")
    with pytest.raises(ValueError, match="no view"):
        lab.view("graph")
    lab.panel()
    assert "nothing has run yet" in capsys.readouterr().out
    rollout = await lab.run(asker, tasks()[0], grader=says_yes)
    assert "Is 0 a number?" in lab.view("rollout", rollout.id)._repr_mimebundle_()["text/html"]


async def test_cells_run_again_in_any_order(open_lab: OpenLab) -> None:
    policy = StandInPolicy(delay_s=0.1)
    lab = open_lab(policy)
    first = trainer(lab)
    run = first.fit(steps=2)
    assert open_lab(policy) is lab, "the lab's cell"
    again = trainer(open_lab(policy))
    with pytest.raises(LabBusyError, match=run.id):
        again.fit(steps=1)
    edited = ll.harness(name="asker")(lambda task: "yes")
    other = await lab.run(edited, tasks()[0], grader=says_yes)
    await run
    assert {rollout.harness.version for rollout in lab.store.rollouts(run.id)} == {asker.version}
    assert other.record.harness.version == edited.version != asker.version
    await again.fit(steps=1)
    lab.close()
    with pytest.raises(LabClosedError, match="Run the cell"):
        again.fit(steps=1)
    new = open_lab(policy=StandInPolicy())
    await trainer(new).fit(steps=1)
    assert run.state == "finished" and len(run.steps()) == 2, "an old run is still readable"
