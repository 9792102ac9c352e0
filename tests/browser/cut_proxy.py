"""A way to the server that can be cut: what a sleeping laptop or a broken network does to a page."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CutProxy:
    """Forwards connections to a port of this machine, until it is cut and after it is mended."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = True
        self._pairs: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Every connection breaks, and new ones are refused."""
        with self._lock:
            self._open = False
            pairs, self._pairs = self._pairs, set()
        for one in pairs:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        with self._lock:
            self._open = True

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._open:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._pairs |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._pairs.discard(one)
