"""A submitted run in a notebook: followed where its job stores it, from any kernel that sees its folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_lab.cluster import HeadUnreachableError, JobDiedError, JobFolder, Jobs, JobStatus
from lightning_lab.cluster.folder import machine
from lightning_lab.notebook.errors import RunFailedError
from lightning_lab.notebook.feed import RunFeed
from lightning_lab.notebook.frames import Snapshot
from lightning_lab.notebook.run import StoredRun
from lightning_lab.notebook.shown import shown
from lightning_lab.notebook.views import MimeBundle
from lightning_lab.records import Ids
from lightning_lab.samples import Decode
from lightning_lab.store import RunFolder, Store, StoreError

if TYPE_CHECKING:
    from lightning_lab.notebook.lab import Lab

POLL_S = 0.5
_MISSES = 3
"""Times in a row that a cluster does not answer before following ends: its head may be busy."""
_SHOWN = 2000
"""Characters of a job's log that an error repeats."""


class JobStore:
    """A submitted run as a source: the live store on the job's machine, elsewhere the copy that the job brings home."""

    def __init__(self, job: JobFolder, lab: Lab) -> None:
        self.job = job
        self.redaction = lab.redaction
        self._lab = lab
        self._open: tuple[Any, Store] | None = None
        self._decode: tuple[Store, Decode | None] | None = None

    @property
    def begun(self) -> bool:
        """Whether there is something to read."""
        try:
            self.store.run(self.job.run_id)
            return True
        except StoreError:
            return False

    @property
    def store(self) -> Store:
        """Raises `store.StoreError` while the job has stored nothing."""
        begun = self.job.read("begun")
        if not begun:
            raise StoreError(f"The job of run {self.job.run_id} has not begun to train.")
        here = begun["machine"] == machine()
        path = Path(begun["store"]) if here else Path(begun["runs"]) / self.job.run_id / "store.sqlite"
        version = (path, None if here else _version(path))
        if self._open is None or self._open[0] != version:
            self._open = (version, Store(path, read_only=True))
        return self._open[1]

    @property
    def decode(self) -> Decode | None:
        """By the words that the copy carries; a live store has none, and is read by the lab's tokenizer if it is the
        same one."""
        store = self.store
        if self._decode is None or self._decode[0] is not store:
            self._decode = (store, self._decoder(store))
        return self._decode[1]

    def _decoder(self, store: Store) -> Decode | None:
        words = store.vocabulary()
        if words:
            return lambda ids: _text(ids, words)
        theirs, ours = (
            about["hashes"].get("tokenizer")
            for about in (self.manifest(self.job.run_id), self._lab.manifest(self._lab.id))
        )
        return self._lab.decode if theirs == ours else None

    def snapshot(self, feed: RunFeed | None) -> Snapshot:
        lab, state = self._lab.id, "closed" if self._lab.closed else "open"
        return feed.snapshot(lab=lab, lab_state=state) if feed else Snapshot(lab=lab, lab_state=state)

    def manifest(self, run_id: str) -> Mapping[str, Any]:
        return RunFolder.open(Path(self.job.read("begun").get("runs", self.job.runs)) / run_id).manifest()

    def close(self) -> None:
        """Idempotent."""
        if self._open is not None:
            self._open[1].close()


class AttachedRun(StoredRun):
    """A run that a job trains. Display it for its progress, await it for its end; it needs no kernel to go on."""

    def __init__(self, source: JobStore, jobs: Jobs, show: Callable[[Callable[[], MimeBundle]], None]) -> None:
        super().__init__(source, source.job.run_id)
        self.source = source
        self._jobs = jobs
        self._show = show

    @property
    def job(self) -> JobStatus:
        """Where the job's process is. Raises `cluster.HeadUnreachableError`."""
        return self._jobs.status(self.source.job)

    @property
    def state(self) -> str:
        """The run's; before it has begun, and after its job died, the job's. ``unreachable``: its cluster is gone."""
        if self.source.begun:
            stored = self.record.state
            if stored != "running":
                return stored
        try:
            status = self.job
        except HeadUnreachableError:
            return "unreachable"
        return "failed" if status.state == "succeeded" and not self.source.begun else status.state

    @property
    def done(self) -> bool:
        """Whether the job has ended, well or not."""
        return self.job.ended

    @property
    def program(self) -> str:
        """What was sent."""
        return self.source.job.program.read_text(encoding="utf-8")

    def log(self) -> str:
        """What the job printed."""
        return self._jobs.log(self.source.job)

    def stop(self) -> None:
        """Finish the step under way, then end. Returns at once."""
        self.source.job.ask_to_stop()

    def cancel(self) -> None:
        """End the job now. Returns at once."""
        self._jobs.end(self.source.job)

    def feed(self) -> RunFeed | None:
        """For the panel; None while there is nothing to read."""
        return self._current_feed() if self.source.begun else None

    async def wait(self) -> AttachedRun:
        """Wait for the end of the job. Raises `RunFailedError`, `cluster.JobDiedError` or `HeadUnreachableError`."""
        status = await asyncio.to_thread(self._ended)
        if not self.source.begun:
            raise JobDiedError(f"The job of run {self.id} ended before its run began. {self._last_words(status)}")
        record = self.record
        if record.state == "running":
            raise JobDiedError(
                f"The job of run {self.id} died ({status.state}) while it trained. {self._go_on} "
                f"{self._last_words(status)}"
            )
        if record.state == "failed":
            raise RunFailedError(f"Run {self.id} failed. {self.source.redaction.text(record.reason)}")
        return self

    def __await__(self) -> Generator[Any, None, AttachedRun]:
        return self.wait().__await__()

    def bundle(self) -> MimeBundle:
        if self.source.begun:
            return super().bundle()
        text = f"Run {self.id}: {self.state}"
        return {"text/plain": text, "text/html": f"<p>{shown(text)}</p>"}

    def __repr__(self) -> str:
        return str(self.bundle()["text/plain"]) if not self.source.begun else super().__repr__()

    def _ipython_display_(self) -> None:
        self._show(self.bundle)

    def _ended(self) -> JobStatus:
        misses = 0
        while misses < _MISSES:
            try:
                status, misses = self.job, 0
                if status.ended:
                    return status
            except HeadUnreachableError as error:
                misses += 1
                gone = error
            time.sleep(POLL_S)
        raise HeadUnreachableError(
            f"{gone} Run {self.id} was followed there; Ray ends its jobs when its head is gone. {self._go_on}"
        ) from gone

    @property
    def _go_on(self) -> str:
        return (
            "What it stored is kept: go on from the latest checkpoint with "
            f'll.Lab(…, resume="{self.id}") and trainer.resume("{self.id}").'
        )

    def _last_words(self, status: JobStatus) -> str:
        said = status.said or self.log()
        shown = said if len(said) <= _SHOWN else f"{said[: _SHOWN // 4]} … {said[-_SHOWN:]}"
        return self.source.redaction.text(shown).strip()


def _version(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _text(ids: Ids, words: Mapping[int, bytes]) -> str:
    return b"".join(words.get(one, b"") for one in ids.tolist()).decode(errors="replace")
