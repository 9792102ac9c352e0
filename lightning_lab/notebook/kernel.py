"""The IPython kernel this process may be: the only file that knows ipykernel.

A plain script has no kernel; then nothing is sent and everything else works.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_lab.notebook.requests import Reply

PUSH_COMM_ID = "lightning-lab-push"
REQUEST_TARGET = "lightning-lab-request"

log = logging.getLogger(__name__)


class KernelLink:
    """Sends to the front ends of this kernel, from any thread."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._kernel = shell.kernel
        self._connected = True

    def disconnect(self) -> None:
        """Send nothing any more."""
        self._connected = False

    def push(self, header: Mapping[str, Any], buffers: Sequence[bytes]) -> None:
        """Broadcast one frame on iopub.

        ``iopub_socket`` is ipykernel's background socket: it hands the message to the IOPub thread, so this works
        while a cell keeps the main thread busy. There is no open handshake and no parent: the id is fixed and every
        front end filters for it, also after a reload.
        """
        if not self._connected:
            return
        self._kernel.session.send(
            self._kernel.iopub_socket,
            "comm_msg",
            {"comm_id": PUSH_COMM_ID, "data": header},
            parent={},
            ident=f"comm-{PUSH_COMM_ID}".encode(),
            buffers=list(buffers),
        )

    def display(self, bundle: Mapping[str, Any], display_id: str, *, update: bool) -> None:
        """Show a MIME bundle in the running cell, or replace it wherever ``display_id`` is shown."""
        if not self._connected:
            return
        publisher = self._shell.display_pub
        publisher.publish(dict(bundle), {}, transient={"display_id": display_id}, update=update)

    def serve(self, answer: Callable[[Any], Reply]) -> None:
        """Answer requests on the request target: ``answer`` maps a message's data to the reply.

        The kernel calls on whatever thread (main shell or subshell) delivers the message, and the reply leaves from
        that thread: a reply from elsewhere would make later requests queue behind a busy cell.
        """

        _CHANNEL.answer = answer
        self._kernel.comm_manager.register_target(REQUEST_TARGET, _CHANNEL.opened)


class _RequestChannel:
    """Front ends keep their channel when a lab follows another one, so every message goes to the latest lab."""

    answer: Callable[[Any], Reply]

    def opened(self, comm: Any, _: Any) -> None:
        comm.on_msg(lambda message: self._reply(comm, message["content"]["data"]))

    def _reply(self, comm: Any, asked: Any) -> None:
        reply = self.answer(asked)
        comm.send(reply.data, buffers=list(reply.buffers))


_CHANNEL = _RequestChannel()


def current_kernel() -> KernelLink | None:
    """The kernel of this process, or None in a plain script or a terminal IPython."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    return KernelLink(shell) if getattr(shell, "kernel", None) is not None else None
