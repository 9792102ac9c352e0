"""Cell outputs that follow a run where the extension is absent: refreshed HTML summaries."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from lightning_lab.notebook.kernel import KernelLink
from lightning_lab.notebook.views import MimeBundle

REFRESH_S = 2.0
_KEPT = 8  # cells that are run again leave outputs behind that nobody sees any more

log = logging.getLogger(__name__)


class Displays:
    """Shows bundles under display ids and refreshes them, as long as no front end with the extension said hello.

    ``settle`` refreshes whatever the front end: a saved notebook then holds the last state.
    """

    def __init__(self, kernel: KernelLink) -> None:
        self._kernel = kernel
        self._shown: deque[_Shown] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.extension_present = False

    def show(self, make: Callable[[], MimeBundle]) -> None:
        """Display ``make()`` in the running cell and follow it from now on."""
        shown = _Shown(make)
        self._kernel.display(shown.bundle, shown.display_id, update=False)
        with self._lock:
            self._shown.append(shown)
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._follow, name="lightning-lab-displays", daemon=True)
                self._thread.start()

    def settle(self) -> None:
        """Refresh everything that changed, now, in the caller's thread."""
        with self._lock:
            for shown in self._shown:
                self._refresh(shown)

    def close(self) -> None:
        """Stop following. Idempotent."""
        self._closed.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5)

    def _follow(self) -> None:
        while not self._closed.wait(REFRESH_S):
            if not self.extension_present:
                self.settle()

    def _refresh(self, shown: _Shown) -> None:
        try:
            if shown.renew():
                self._kernel.display(shown.bundle, shown.display_id, update=True)
        except Exception:
            log.exception("A cell's output could not be refreshed")


class _Shown:
    def __init__(self, make: Callable[[], MimeBundle]) -> None:
        self.display_id = f"lightning-lab-{uuid4().hex}"
        self._make = make
        self.bundle: dict[str, Any] = make()

    def renew(self) -> bool:
        """Make the bundle again; whether a reader would see a difference."""
        before, self.bundle = self.bundle, self._make()
        return bool(before["text/html"] != self.bundle["text/html"])
