"""Everything between one lab and its front ends: push, requests, refreshed outputs. Nothing in a plain script."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lightning_lab.notebook.bridge import Bridge, Source
from lightning_lab.notebook.displays import Displays
from lightning_lab.notebook.kernel import KernelLink
from lightning_lab.notebook.requests import Handler, Requests
from lightning_lab.notebook.views import MimeBundle
from lightning_lab.store import Store


class FrontEnd:
    """Starts with the lab and closes with it."""

    def __init__(
        self, kernel: KernelLink | None, source: Source, store: Store, handlers: Mapping[str, Handler]
    ) -> None:
        self._kernel = kernel
        self._bridge: Bridge | None = None
        self._displays: Displays | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        if kernel is None:
            return
        # Requests first: the first frame makes a front end say hello.
        kernel.serve(Requests(handlers).answer)
        self._displays = Displays(kernel)
        self._bridge = Bridge(source, lambda frame: kernel.push(frame.header, frame.buffers))
        self._unsubscribe = store.watch(self.wake)
        self._bridge.start()

    def wake(self) -> None:
        """Something changed: push soon."""
        if self._bridge:
            self._bridge.wake()

    def said_hello(self) -> None:
        """A front end with the extension is there: it draws for itself from now on."""
        if self._displays:
            self._displays.extension_present = True
        self.greet()

    def greet(self) -> None:
        """Somebody new is listening: show at once what there is."""
        if self._bridge:
            self._bridge.greet()

    @property
    def extension_present(self) -> bool:
        return self._displays is not None and self._displays.extension_present

    def show(self, make: Callable[[], MimeBundle]) -> None:
        """Show a bundle in the running cell and keep it fresh; in a plain script, print its text."""
        if self._displays:
            self._displays.show(make)
        else:
            print(make()["text/plain"])

    def settle(self) -> None:
        """Bring every shown output up to date now."""
        if self._displays:
            self._displays.settle()

    def disconnect(self) -> None:
        """Send nothing any more."""
        if self._kernel:
            self._kernel.disconnect()

    def close(self) -> None:
        """Last refresh and last frame. Idempotent. The store must still be open."""
        self._unsubscribe()
        self.settle()
        if self._displays:
            self._displays.close()
        if self._bridge:
            self._bridge.close()
