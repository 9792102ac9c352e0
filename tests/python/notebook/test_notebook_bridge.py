"""Who begins to listen is shown everything at once, however quiet the lab is."""

from __future__ import annotations

import queue
from typing import Any

import pytest

from lightning_lab.notebook import bridge
from lightning_lab.notebook.frames import Frame, Snapshot


class QuietLab:
    def feed(self) -> None:
        return None

    def snapshot(self, feed: Any) -> Snapshot:
        return Snapshot(lab="lab", lab_state="open")


def test_a_greeting_brings_a_key_frame_without_waiting_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "IDLE_KEY_S", 10_000.0)
    frames: queue.Queue[Frame] = queue.Queue()
    pushed = bridge.Bridge(QuietLab(), frames.put)
    pushed.start()
    try:
        assert frames.get(timeout=30).header["seq"] == 1
        pushed.wake()  # nothing changed: nothing is said
        pushed.greet()
        assert frames.get(timeout=30).header["seq"] == 2
    finally:
        pushed.close()
    assert frames.get(timeout=30).header["seq"] == 3 and frames.empty()


def test_frames_that_take_long_are_fewer_but_never_rare() -> None:
    assert bridge.rest_s(0.0) == bridge.rest_s(0.001) == 0.1
    assert bridge.rest_s(0.004) == pytest.approx(0.2)
    assert bridge.rest_s(60.0) == 0.5
