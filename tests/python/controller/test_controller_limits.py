"""What a rollout may use: kept by the kernel's groups where they can be made, else by the supervisor that counts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lightning_lab.controller import Limits, cgroups
from lightning_lab.records import Outcome

TIGHT = Limits(processes=40, memory_gb=0.4, disk_gb=0.02, open_files=64)
BOMB = "branch() { for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & sleep .02; done; branch & branch; }; branch"
"""Grows without end, slowly enough not to disturb its neighbours where nothing but the supervisor stops it."""


@pytest.fixture(scope="module", params=["groups", "counting"])
def tight(request, tmp_path_factory, make_module_bench):
    """With what this machine's kernel offers, and as on a machine where no group can be made."""
    if request.param == "counting":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lightning_lab.controller.controller.find_places", dict)
            return make_module_bench(limits=TIGHT)
    return make_module_bench(limits=TIGHT)


def only_supervisors(bench):
    return all("fork_server" in " ".join(process.cmdline()) for process in bench.processes())


def test_a_fork_bomb_is_ended_by_name_and_leaves_nothing(tight):
    rollout = tight.run(tight.command("sh", "-c", BOMB, timeout_s=60))
    assert (rollout.outcome, rollout.reward) == (Outcome.AGENT_ERROR, 0.0)
    assert "Limits.processes" in rollout.error
    assert only_supervisors(tight)
    assert tight.run(tight.harness(lambda task: task.answer)).reward == 1.0


def test_a_few_processes_are_no_bomb(tight):
    agent = tight.command("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1.5 & done; wait; echo 42")
    assert tight.run(agent).outcome is Outcome.COMPLETED


def test_a_full_quota_ends_the_rollout_by_name(tight):
    def agent(task):
        for number in range(4):
            Path(f"file-{number}").write_bytes(os.urandom(8_000_000))
        time.sleep(1000)

    rollout = tight.run(tight.harness(agent, timeout_s=60))
    assert (rollout.outcome, rollout.reward) == (Outcome.AGENT_ERROR, 0.0)
    assert "Limits.disk_gb" in rollout.error
    assert tight.folders() == []


def test_the_quota_holds_for_home_and_tmp_and_for_an_agent_that_is_quick(tight):
    agent = tight.command("sh", "-c", "for f in $HOME/a $TMPDIR/b c; do head -c 9000000 /dev/urandom > $f; done")
    rollout = tight.run(agent)
    assert rollout.outcome is Outcome.AGENT_ERROR
    assert "Limits.disk_gb" in rollout.error  # with what was there when it was looked at: all three, or the first ones


def test_no_file_is_larger_than_the_quota(tight):
    rollout = tight.run(tight.command("sh", "-c", "exec head -c 30000000 /dev/zero > file"))
    assert (rollout.outcome, rollout.exit_code) == (Outcome.AGENT_ERROR, -25)
    assert "Limits.disk_gb" in rollout.error


def test_open_files_are_bounded(tight):
    def agent(task):
        opened = []
        try:
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            return [error.strerror, len(opened) < 64]

    assert tight.run(tight.harness(agent)).output == '["Too many open files", true]'


def test_memory_beyond_the_limit_is_oom(tight):
    def agent(task):
        held = []
        while True:
            held.append(b"x" * 20_000_000)
            time.sleep(0.02)

    rollout = tight.run(tight.harness(agent, timeout_s=60))
    assert (rollout.outcome, rollout.reward) == (Outcome.OOM, None)
    assert "memory" in rollout.error
    assert tight.run(tight.harness(lambda task: task.answer)).reward == 1.0


def test_a_child_that_ran_out_of_memory_explains_the_failure_of_its_shell(tight):
    hungry = "import time\nheld = []\nwhile True:\n    held.append(b'x' * 20_000_000)\n    time.sleep(.02)"
    rollout = tight.run(tight.command("sh", "-c", f'python -c "{hungry}"; exit $?', timeout_s=60))
    assert rollout.outcome is Outcome.OOM


def test_a_grader_is_bounded_too(tight):
    def greedy(task, result):
        import subprocess

        subprocess.run(["sh", "-c", BOMB])

    rollout = tight.run(tight.harness(lambda task: 1), tight.grader(greedy))
    assert (rollout.outcome, rollout.reward) == (Outcome.GRADER_ERROR, None)
    assert "Limits.processes" in rollout.verdict


def test_groups_go_with_their_supervisors(make_bench):
    places = cgroups.find_places()
    bench = make_bench(limits=TIGHT)
    rollout = bench.run(bench.command("sh", "-c", "cat /proc/self/cgroup"))
    mine = {line.rpartition("lightning-lab-")[2] for line in rollout.output.splitlines() if "lightning-lab-" in line}
    assert len(mine) == (1 if places else 0)
    bench.controller.close()
    left = [group for place in places.values() for group in Path(place).glob("lightning-lab-*") if group.name in mine]
    assert left == []


@pytest.mark.parametrize("limit", ["processes", "memory_gb", "disk_gb", "open_files"])
def test_a_limit_that_leaves_nothing_is_refused(limit):
    with pytest.raises(ValueError, match=rf"{limit}=0\): it must be above 0"):
        Limits(**{limit: 0})


CGROUP_2 = "36 25 0:31 {root} {point} rw,nosuid - cgroup2 cgroup2 rw\n"


@pytest.fixture
def tree(tmp_path):
    """A machine's ``/proc/self`` and its control groups, as files; returns a function that places this process."""

    def make(own, root="/", **limits):
        point = tmp_path / "cgroup"
        folder = point / own.removeprefix(root).lstrip("/")
        folder.mkdir(parents=True)
        for group in (folder, folder.parent):
            (group / "cgroup.procs").touch()
            (group / "cgroup.subtree_control").write_text("")
        for name, text in limits.items():
            (folder / name.replace("_", ".")).write_text(text)
        (tmp_path / "mountinfo").write_text(CGROUP_2.format(root=root, point=point))
        (tmp_path / "cgroup.txt").touch()
        process = tmp_path / "self"
        process.mkdir()
        (process / "cgroup").write_text(f"0::{own}\n")
        (process / "mountinfo").write_text(CGROUP_2.format(root=root, point=point))
        return process, folder

    return make


def test_a_users_session_makes_its_groups_beside_the_notebooks(tree):
    process, own = tree("/user.slice/app.slice/jupyter.scope", memory_max="max")
    (own.parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert cgroups.find_places(process) == {"pids": str(own.parent), "memory": str(own.parent)}


def test_agents_do_not_leave_a_group_that_limits_the_notebook(tree):
    process, own = tree("/user.slice/app.slice/jupyter.scope", memory_max="8000000000")
    (own.parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert cgroups.find_places(process) == {}


def test_a_container_whose_group_passes_nothing_on_makes_none(tree):
    process, _ = tree("/", root="/")
    assert cgroups.find_places(process) == {}
