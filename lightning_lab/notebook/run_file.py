"""An exported run for the panel: the same frames and answers that a lab gives, from a file and without a kernel."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from lightning_lab.notebook.feed import RunFeed
from lightning_lab.notebook.frames import Frame, FrameBuilder
from lightning_lab.notebook.reading import reading_handlers
from lightning_lab.notebook.requests import Reply, Requests
from lightning_lab.notebook.token_text import looked_up
from lightning_lab.store import StoreError, open_run


class RunFile:
    """Open until closed. Raises `store.StoreError` when the file is no exported run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = open_run(path)
        runs = self._store.runs()
        if not runs:
            self._store.close()
            raise StoreError(f"{path.name} holds no run.")
        self._run_id = runs[-1].id
        self._requests = Requests(reading_handlers(lambda: self._store, looked_up(self._store.vocabulary())))

    def frames(self) -> list[Frame]:
        """The whole run, in as many frames as it takes."""
        feed = RunFeed(self._store, self._run_id)
        feed.refresh()
        snapshot = feed.snapshot(lab=f"file:{self._run_id}", lab_state="closed")
        builder = FrameBuilder(feed.table)
        frames = [builder.build(snapshot, seq=1, key=False)]
        while builder.has_news(snapshot):
            frames.append(builder.build(snapshot, seq=len(frames) + 1, key=False))
        return frames

    def answer(self, data: Any) -> Reply:
        return self._requests.answer(data)

    def close(self) -> None:
        self._store.close()


def packed(header: Any, buffers: Sequence[bytes]) -> bytes:
    """One message for a byte stream: number of parts, their lengths (u32, little-endian), the JSON, the buffers."""
    parts = [orjson.dumps(header), *buffers]
    return struct.pack(f"<{len(parts) + 1}I", len(parts), *(len(part) for part in parts)) + b"".join(parts)
