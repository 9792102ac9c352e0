"""What a grader gets, and that only a finite number is ever a reward."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from lightning_lab.records import Outcome, RolloutState


@pytest.mark.parametrize(
    ("returned", "reward"),
    [(True, 1.0), (False, 0.0), (1, 1.0), (-0.5, -0.5), (np.float32(0.25), 0.25), (np.bool_(True), 1.0)],
)
def test_numbers_and_booleans_are_rewards(bench, returned, reward):
    rollout = bench.run(bench.harness(lambda task: 1), bench.grader(lambda task, result: returned))
    assert (rollout.outcome, rollout.reward) == (Outcome.COMPLETED, reward)
    assert type(rollout.reward) is float


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "returned None"),
        (math.nan, "returned nan"),
        (math.inf, "returned inf"),
        ("good", "returned str 'good'"),
        ([1.0], "returned list"),
        (10**400, "returned int"),
    ],
)
def test_anything_else_is_the_graders_error(bench, returned, words):
    rollout = bench.run(bench.harness(lambda task: "kept"), bench.grader(lambda task, result: returned))
    assert (rollout.state, rollout.outcome, rollout.reward) == (RolloutState.FAILED, Outcome.GRADER_ERROR, None)
    assert words in rollout.verdict and "finite number" in rollout.verdict
    assert rollout.output == "kept"


def test_a_grader_that_raises_shows_its_traceback(bench):
    def grade(task, result):
        return 1 / int(result.output)

    rollout = bench.run(bench.harness(lambda task: "0"), bench.grader(grade))
    assert (rollout.outcome, rollout.reward) == (Outcome.GRADER_ERROR, None)
    assert "return 1 / int(result.output)" in rollout.verdict and "ZeroDivisionError" in rollout.verdict


def test_a_grader_that_never_ends_is_ended(bench):
    def grade(task, result):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)

    rollout = bench.run(bench.harness(lambda task: 1), bench.grader(grade, timeout_s=0.3))
    assert (rollout.outcome, rollout.reward) == (Outcome.GRADER_ERROR, None)
    assert "0.3 s" in rollout.verdict


def test_a_grader_that_dies_is_an_error(bench):
    rollout = bench.run(bench.harness(lambda task: 1), bench.grader(lambda task, result: os._exit(0)))
    assert (rollout.outcome, rollout.reward) == (Outcome.GRADER_ERROR, None)


def test_an_async_grader_prints_its_verdict(bench):
    async def grade(task, result):
        print("close, but no")
        return 0.5

    rollout = bench.run(bench.harness(lambda task: 1), bench.grader(grade))
    assert (rollout.reward, rollout.verdict) == (0.5, "close, but no")


def test_the_grader_gets_the_result_and_a_copy_of_the_folder(bench):
    def agent(task):
        Path("made.txt").write_text("by the agent")
        os.mkfifo("pipe")
        Path("link").symlink_to("/etc/hostname")
        print("said")
        return {"n": 1}

    def grade(task, result):
        folder = Path(result.workdir)
        assert result.output == {"n": 1} and result.exit_code == 0 and result.stdout == "said\n"
        assert sorted(entry.name for entry in folder.iterdir()) == ["link", "made.txt"]
        assert (folder / "link").is_symlink()
        assert not list(Path().iterdir())  # it starts in a folder of its own
        (folder / "made.txt").write_text("changed by the grader")
        return 1.0

    rollout = bench.run(bench.harness(agent), bench.grader(grade))
    assert rollout.reward == 1.0, rollout.verdict
    assert bench.folders() == []


def test_a_module_left_by_the_agent_is_not_imported_by_the_grader(bench):
    def agent(task):
        for name in ("json", "colorsys"):
            Path(f"{name}.py").write_text("raise SystemExit('hacked')")
        return "42"

    def grade(task, result):
        import colorsys

        return bool(colorsys.ONE_THIRD)

    assert bench.run(bench.harness(agent), bench.grader(grade)).reward == 1.0


def test_the_agent_is_gone_before_the_grader_runs(bench):
    def agent(task):
        import subprocess

        return subprocess.Popen(["setsid", "sleep", "1000"]).pid

    def grade(task, result):
        return not Path(f"/proc/{result.output}").exists()

    assert bench.run(bench.harness(agent), bench.grader(grade)).reward == 1.0


FORGER = "while True: open('answer', 'w').write('forged' * 1000)"


def test_a_process_left_behind_cannot_change_what_is_graded(bench):
    def agent(task):
        import subprocess
        import sys

        Path("answer").write_text("mine")
        subprocess.Popen([sys.executable, "-c", FORGER], start_new_session=True)
        while Path("answer").read_text() in ("mine", ""):
            time.sleep(0.001)
        return str(Path.cwd())

    def grade(task, result):
        answers = [Path(result.workdir) / "answer", Path(result.output) / "answer"]
        before = [(answer.read_text(), answer.stat().st_mtime_ns) for answer in answers]
        time.sleep(0.3)
        after = [(answer.read_text(), answer.stat().st_mtime_ns) for answer in answers]
        return before == after and answers[0].resolve() != answers[1].resolve()

    assert bench.run(bench.harness(agent), bench.grader(grade)).reward == 1.0


@pytest.mark.parametrize("planted", ["folder", "link"])
def test_what_an_agent_puts_in_the_copys_place_is_not_graded(bench, planted):
    def agent(task):
        Path("answer").write_text("mine")
        Path("../forged").mkdir()
        Path("../forged/answer").write_text("forged")
        for place in ("../copy", "../grading"):
            if planted == "link":
                Path(place).symlink_to("forged")
            else:
                Path("../forged").rename(place) if place == "../copy" else Path(place).mkdir()

    def grade(task, result):
        return (Path(result.workdir) / "answer").read_text() == "mine" and not [*Path().iterdir()]

    rollout = bench.run(bench.harness(agent), bench.grader(grade))
    assert (rollout.outcome, rollout.reward) == (Outcome.COMPLETED, 1.0)


def test_without_a_grader_there_is_no_reward_and_no_error(bench):
    harness = bench.harness(lambda task: "x")
    rollout = bench.controller.submit(bench.rollout(harness), harness, None).result(30)
    assert (rollout.outcome, rollout.reward) == (Outcome.COMPLETED, None)


def test_a_link_in_the_place_of_the_working_directory_is_not_copied(bench, tmp_path):
    private = tmp_path / "private"
    private.mkdir(mode=0o755)
    (private / "secret.txt").write_text("secret")
    elsewhere = str(private)

    def agent(task):
        Path("../work").rename("../away")
        Path("../work").symlink_to(elsewhere)

    def grade(task, result):
        return float(len([*Path(result.workdir).iterdir()]))

    rollout = bench.run(bench.harness(agent), bench.grader(grade))
    assert (rollout.outcome, rollout.reward) == (Outcome.GRADER_ERROR, None)
    assert "put a link in its place" in rollout.verdict
    assert private.stat().st_mode & 0o777 == 0o755


def test_rllm_710_a_time_out_and_the_crashes_of_grader_and_agent_are_three_outcomes(bench):
    def crash(task, result=None):
        raise RuntimeError("crashed")

    too_slow = bench.run(bench.harness(lambda task: time.sleep(1000), timeout_s=0.3))
    ungraded = bench.run(bench.harness(lambda task: "done"), bench.grader(crash))
    failed = bench.run(bench.harness(crash))
    assert [too_slow.outcome, ungraded.outcome, failed.outcome] == [
        Outcome.TIMEOUT,
        Outcome.GRADER_ERROR,
        Outcome.AGENT_ERROR,
    ]
    assert [too_slow.reward, ungraded.reward, failed.reward] == [0.0, None, 0.0]
