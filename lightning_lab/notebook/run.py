"""Runs in the notebook: what was stored of one, and the handle of one that trains."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lightning_lab.notebook.data import breaks_frame, rollouts_frame, steps_frame
from lightning_lab.notebook.errors import RunFailedError
from lightning_lab.notebook.feed import RunFeed
from lightning_lab.notebook.figures import learning_figure
from lightning_lab.notebook.frames import Snapshot
from lightning_lab.notebook.html import headline
from lightning_lab.notebook.rollout import RolloutView
from lightning_lab.notebook.snapshot import held_out_point
from lightning_lab.notebook.views import MimeBundle, View, run_bundle
from lightning_lab.notebook.waiting import wait_for
from lightning_lab.records import Ids, Run
from lightning_lab.samples import Decode
from lightning_lab.store import COMMON, Redaction, Store, export_run, open_run

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


class RunSource(Protocol):
    """Where a run is read from: a lab, open or closed, or a file."""

    @property
    def store(self) -> Store: ...

    @property
    def decode(self) -> Decode | None: ...

    @property
    def redaction(self) -> Redaction: ...

    def snapshot(self, feed: RunFeed | None) -> Snapshot: ...

    def manifest(self, run_id: str) -> Mapping[str, Any]: ...


class StoredRun:
    """One stored experiment, to look at."""

    def __init__(self, source: RunSource, run_id: str) -> None:
        self.id = run_id
        self._source = source
        self._feed: tuple[Store, RunFeed] | None = None

    @property
    def record(self) -> Run:
        """The run's record: kind, state, reason, settings, times."""
        return self._source.store.run(self.id)

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``stopped`` or ``failed``."""
        return self.record.state

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.record.settings

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What ran, on what, with which code and versions."""
        shown: Mapping[str, Any] = self._source.redaction.value(self._source.manifest(self.id))
        return shown

    def rollouts(self, *, step: int | None = None, mode: str | None = None, state: str | None = None) -> pd.DataFrame:
        """The run's rollouts, one line each; of one ``step``, ``mode`` or ``state`` only, where given."""
        store = self._source.store
        return rollouts_frame(store, store.rollouts(self.id, step=step, mode=mode, state=state), self._source.redaction)

    def rollout(self, rollout_id: str) -> RolloutView:
        """One rollout: ``run.rollout("r-…").call(3)``. Raises `store.UnknownIdError`."""
        return RolloutView(self._source, self._source.store.rollout(rollout_id).id, snapshot=self.snapshot)

    def steps(self) -> pd.DataFrame:
        """The optimiser steps with all their metrics, one line each."""
        return steps_frame(self._source.store.steps(self.id))

    def breaks(self) -> pd.DataFrame:
        """Where and why calls could not be merged: cause, harness, count, tokens read again, explanation."""
        return breaks_frame(self._source.store, self.id, self._source.decode)

    def figure(self) -> go.Figure:
        """Reward and entropy over steps."""
        store = self._source.store
        held_out = [held_out_point(event) for event in store.events(run_id=self.id, kind="evaluation")]
        return learning_figure(store.steps(self.id), held_out, f"Run {self.id}")

    def view(self, kind: str = "run", rollout_id: str | None = None) -> View:
        """A page in a cell: ``run.view()`` or ``run.view("rollout", "r-…")``; it stays in the saved notebook."""
        if kind == "run":
            return View(self.bundle())
        if kind == "rollout":
            if rollout_id is None:
                raise ValueError('Which rollout? run.view("rollout", "r-…"); run.rollouts() lists them.')
            return View(self.rollout(rollout_id).bundle())
        raise ValueError(f"There is no view {kind!r}: use 'run' or 'rollout'.")

    def export(self, path: str | Path) -> Path:
        """Write the run into one file that opens without a kernel, a model or a GPU: ``ll.load(path)``.

        Secrets are left out, of its texts and of its ids, by the lab's rules (``Lab(redact=…)``).
        """
        source = self._source
        return export_run(
            source.store,
            self.id,
            Path(path).expanduser(),
            manifest=self.manifest,
            redaction=source.redaction,
            decode=source.decode,
        )

    def snapshot(self) -> Snapshot:
        """What the Run page shows now."""
        return self._source.snapshot(self._current_feed())

    def bundle(self) -> MimeBundle:
        """The Run page as a saved view."""
        feed = self._current_feed()
        return run_bundle(self.snapshot(), feed.table.rows)

    def _current_feed(self) -> RunFeed:
        store = self._source.store
        if self._feed is None or self._feed[0] is not store:
            self._feed = (store, RunFeed(store, self.id, self._source.redaction))
        self._feed[1].refresh()
        return self._feed[1]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> MimeBundle:
        return self.bundle()

    def __repr__(self) -> str:
        return headline(self.snapshot())


class Loop(Protocol):
    """A training loop: it runs in one thread and is steered from any."""

    def run(self) -> Run: ...
    def request_stop(self) -> None: ...
    def cancel(self) -> None: ...


class RunHandle(StoredRun):
    """A run that ``fit`` started. Display it for its progress, await it for its end."""

    def __init__(
        self,
        source: RunSource,
        run_id: str,
        *,
        control: Loop,
        ended: Future[Run],
        show: Callable[[Callable[[], MimeBundle]], None],
    ) -> None:
        super().__init__(source, run_id)
        self._control = control
        self._ended = ended
        self._show = show

    @property
    def done(self) -> bool:
        """Whether the run has ended, well or not."""
        return self._ended.done()

    def stop(self) -> None:
        """Finish the step under way, then end. Returns at once; ``await run`` waits for the end."""
        self._control.request_stop()

    def cancel(self) -> None:
        """End now: rollouts under way are cancelled, the step is not finished. Returns at once."""
        self._control.cancel()

    def join(self, timeout_s: float | None = None) -> bool:
        """Block until the run has ended; whether it did. In a cell, ``await run`` instead."""
        return bool(wait([self._ended], timeout_s).done)

    async def wait(self) -> RunHandle:
        """Wait for the end and return this handle. Raises `RunFailedError` if the run failed.

        Interrupting the cell stops the waiting, never the run.
        """
        run = await wait_for(self._ended)
        if run.state == "failed":
            raise RunFailedError(f"Run {self.id} failed. {self._source.redaction.text(run.reason)}")
        return self

    def __await__(self) -> Generator[Any, None, RunHandle]:
        return self.wait().__await__()

    def _ipython_display_(self) -> None:
        self._show(self.bundle)


def load(path: str | Path) -> StoredRun:
    """Open an exported run (``.llab``) or a run folder's store, for reading. Raises `store.StoreError`."""
    store = open_run(Path(path).expanduser())
    runs = store.runs()
    if not runs:
        raise ValueError(f"{path} holds no run.")
    return StoredRun(_File(store), runs[-1].id)


class _File:
    """A stored run without a lab."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.redaction = COMMON
        words = store.vocabulary()
        self.decode: Decode | None = (lambda ids: _text(ids, words)) if words else None

    def snapshot(self, feed: RunFeed | None) -> Snapshot:
        return feed.snapshot(lab="", lab_state="closed") if feed else Snapshot(lab="", lab_state="closed")

    def manifest(self, run_id: str) -> Mapping[str, Any]:
        return self.store.manifest()


def _text(ids: Ids, words: Mapping[int, bytes]) -> str:
    return b"".join(words.get(one, b"") for one in ids.tolist()).decode(errors="replace")
