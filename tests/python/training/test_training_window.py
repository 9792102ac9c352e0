"""Which groups an update consumes, alone: any order of completion, both schedules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_lab.training import ConfigError, TrainConfig
from lightning_lab.training.window import Window


@settings(max_examples=300, deadline=None)
@given(
    schedule=st.sampled_from(["sync", "collocated"]),
    train=st.integers(1, 4),
    in_flight=st.integers(1, 9),
    n=st.integers(1, 4),
    max_staleness=st.none() | st.integers(1, 3),
    steps=st.integers(1, 8),
    data=st.data(),
)
def test_every_group_is_consumed_once_and_in_time(schedule, train, in_flight, n, max_staleness, steps, data) -> None:
    window = Window(schedule, train=train, in_flight=in_flight, n=n, max_staleness=max_staleness)
    born: dict[str, int] = {}
    running: list[str] = []
    consumed: list[str] = []

    def submit() -> None:
        for _ in range(window.room(steps - version)):
            group = f"g-{len(born):04d}"
            born[group] = version
            running.extend([group] * n)
            window.submitted(group, version)

    for version in range(steps):
        submit()
        while not window.enough or window.too_old_to_leave(version):
            assert running, "waits for nothing"
            window.ended(running.pop(data.draw(st.integers(0, len(running) - 1))))
            submit()
            assert len(running) <= n * (train if schedule == "sync" else in_flight)
            left = (steps - version) * train - len(window)
            assert schedule == "sync" or len(running) + n > n * in_flight or left <= 0, "a group more would fit"
        taken = window.take(version)
        assert len(taken) >= train and taken == sorted(taken)
        assert all(version - born[group] <= (max_staleness or steps) for group in taken)
        if schedule == "sync":
            assert len(taken) == train and all(born[group] == version for group in taken)
        consumed += taken
    assert len(window) == 0 and sorted(consumed) == sorted(born) and len(set(consumed)) == len(consumed)


def test_a_slow_group_is_waited_for_when_it_would_become_too_old() -> None:
    window = Window("collocated", train=1, in_flight=2, n=1, max_staleness=1)
    for group in ("g-0", "g-1"):
        window.submitted(group, 0)
    window.ended("g-1")
    assert window.enough and window.too_old_to_leave(0) == []
    assert window.take(0) == ["g-1"]
    window.submitted("g-2", 1)
    window.ended("g-2")
    assert window.enough and window.too_old_to_leave(1) == ["g-0"]
    window.ended("g-0")
    assert window.too_old_to_leave(1) == [] and window.take(1) == ["g-0"]


def test_a_group_that_waits_for_a_straggler_holds_one_place() -> None:
    window = Window("collocated", train=1, in_flight=2, n=4, max_staleness=None)
    for group in ("g-0", "g-1"):
        window.submitted(group, 0)
    for group in ("g-0", "g-0", "g-1"):
        window.ended(group)
        assert window.room(9) == 0
    window.ended("g-1")
    assert window.room(9) == 1 and not window.enough


def test_settings_of_the_schedule_are_checked() -> None:
    for wrong in ({"schedule": "async"}, {"pause": "kill"}, {"async_groups": 0}, {"max_staleness": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            TrainConfig(steps=1, **wrong)
