"""The push side of the panel: a thread that turns what the store committed into frames.

At most `MAX_FRAMES_PER_S`, because the Jupyter server silently drops messages above its limit, and fewer where they
take long; coalesced, so that a burst costs frames of more rows, never more frames; and a key frame when nothing
happens, so that a panel that was just reloaded, while the kernel is busy and cannot answer, still fills.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from lightning_lab.notebook.feed import RunFeed
from lightning_lab.notebook.frames import Frame, FrameBuilder, Snapshot
from lightning_lab.notebook.rows import RolloutTable

MAX_FRAMES_PER_S = 10
SHARE, LONGEST_REST_S = 0.02, 0.5
"""Frames take about this part of the interpreter's time: where much changes each takes long, and there are fewer."""
ACTIVE_KEY_S, IDLE_KEY_S = 1.0, 5.0


log = logging.getLogger(__name__)


class Source(Protocol):
    """What the bridge shows: the lab."""

    def feed(self) -> RunFeed | None:
        """The feed of the run on show, or None when nothing has run yet."""
        ...

    def snapshot(self, feed: RunFeed | None) -> Snapshot: ...


class Bridge:
    """Pushes frames until closed. `wake` may be called from any thread, as often as one likes."""

    def __init__(self, source: Source, send: Callable[[Frame], None]) -> None:
        self._source = source
        self._send = send
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="lightning-lab-bridge", daemon=True)
        self._builder = FrameBuilder(RolloutTable())
        self._feed: RunFeed | None = None
        self._seq = 0
        self._last_fields: object = None
        self._next_key = 0.0
        self._greet = False

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something changed."""
        self._wake.set()

    def greet(self) -> None:
        """Somebody new is listening: a key frame now, without waiting for its turn."""
        self._greet = True
        self._wake.set()

    def close(self) -> None:
        """Push what is left, once more with the closed lab's state, and end. Idempotent."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _loop(self) -> None:
        reported: set[str] = set()
        while True:
            self._wake.wait(max(0.0, self._next_key - time.monotonic()))
            self._wake.clear()
            closing, began = self._closing.is_set(), time.thread_time()
            try:
                self._push(final=closing)
            except Exception as error:
                # Said once: a store that fails would otherwise fill the log ten times a second.
                if repr(error) not in reported:
                    reported.add(repr(error))
                    log.exception("The panel could not be updated")
            if closing:
                return
            took = time.thread_time() - began
            self._closing.wait(rest_s(took))

    def _push(self, *, final: bool) -> None:
        feed = self._source.feed()
        if feed is not self._feed:
            self._feed = feed
            self._builder = FrameBuilder(feed.table if feed else RolloutTable())
        if feed:
            feed.refresh()
        snapshot = self._source.snapshot(feed)
        now = time.monotonic()
        key = final or self._greet or now >= self._next_key
        fields = snapshot.fields()
        if not (key or fields != self._last_fields or self._builder.has_news(snapshot)):
            return
        if key:
            self._greet = False
            active = snapshot.run is not None and snapshot.run["state"] == "running"  # a single rollout's run, too
            self._next_key = now + (ACTIVE_KEY_S if active else IDLE_KEY_S)
        self._seq += 1
        self._send(self._builder.build(snapshot, seq=self._seq, key=key))
        self._last_fields = fields
        if self._builder.has_news(snapshot):
            self._wake.set()


def rest_s(took: float) -> float:
    """How long to wait after a frame that took so many seconds of processor time."""
    return min(max(1 / MAX_FRAMES_PER_S, took / SHARE), LONGEST_REST_S)
