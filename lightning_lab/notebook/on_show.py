"""Which run the panel shows, and what it is doing now."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from lightning_lab.notebook.attached import AttachedRun
from lightning_lab.notebook.feed import RunFeed
from lightning_lab.notebook.frames import Snapshot
from lightning_lab.notebook.run import RunSource
from lightning_lab.notebook.views import MimeBundle, run_bundle

if TYPE_CHECKING:
    from lightning_lab.notebook.lab import Lab

GET_THE_PANEL = (
    "This summary is refreshed while the lab works. For the live panel, install the extension where JupyterLab runs "
    "(pip install lightning-lab), then reload the page."
)


class OnShow:
    """A run of the lab, or a submitted one that it follows. Safe from any thread."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._lock = threading.Lock()
        self._own: RunFeed | None = None
        self.attached: AttachedRun | None = None
        """The submitted run that is on show."""

    def take(self, run_id: str) -> None:
        """Show a run of the lab, unless another one is training."""
        active = self._lab.active_run
        with self._lock:
            self.attached = None
            training = active is not None and active.id != run_id
            if not training and (self._own is None or self._own.run_id != run_id):
                self._own = RunFeed(self._lab.store, run_id, self._lab.redaction)

    def follow(self, run: AttachedRun) -> None:
        """Show a submitted run, until another one starts here."""
        self.attached = run

    @property
    def source(self) -> RunSource:
        """Where the run on show is read from."""
        return self.attached.source if self.attached and self.attached.source.begun else self._lab

    def feed(self) -> RunFeed | None:
        if self.attached is not None and (feed := self.attached.feed()) is not None:
            return feed
        return self._own

    def snapshot(self, feed: RunFeed | None) -> Snapshot:
        """Of any run of the lab, as of its feed's last `refresh`."""
        lab = self._lab
        state = "closed" if lab.closed else "open"
        if feed is None:
            return Snapshot(lab=lab.id, lab_state=state, unsandboxed=lab.unsandboxed)
        if self.attached is not None and feed.run_id == self.attached.id:
            return self.attached.source.snapshot(feed)
        of_run = feed.snapshot(lab=lab.id, lab_state=state, admission=lab.admission, paused=lab.paused)
        return replace(of_run, unsandboxed=lab.unsandboxed, limit=None if lab.closed else lab.limit)

    def now(self) -> Snapshot:
        """Of the run on show, up to date."""
        return self.snapshot(self._readable_feed())

    def bundle(self, *, extension_present: bool) -> MimeBundle:
        """What `lab.panel()` leaves in the notebook."""
        feed, closed = self._readable_feed(), self._lab.closed
        note = "" if closed or extension_present else GET_THE_PANEL
        rows = list(feed.table.rows) if feed else ()
        return run_bundle(self.snapshot(feed), rows, open_panel=not closed, note=note)

    def _readable_feed(self) -> RunFeed | None:
        feed = self._own if self._lab.parts_closed else self.feed()
        if feed is not None and self._lab.parts_closed:
            feed = RunFeed(self._lab.store, feed.run_id, self._lab.redaction)
        if feed is not None:
            feed.refresh()
        return feed
