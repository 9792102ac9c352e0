"""``/proxy/pause`` holds calls, as every pause of the lab does; there they are answered 429 instead."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Protocol

from lightning_lab.gateway.admission import AdmissionState, PauseCancelledError, PauseReport
from lightning_lab.gateway.agl.wire import PauseAsked, PauseState

_NEVER_S = 24 * 3600.0
"""Calls that are under way are not cut off: who pauses watches ``inflight``."""
_LOOK_S = 0.005

_log = logging.getLogger(__name__)


class PausableGateway(Protocol):
    """What pausing needs of the gateway."""

    @property
    def admission(self) -> AdmissionState: ...
    def pause(self, *, deadline_s: float = 60.0) -> PauseReport: ...
    def resume(self) -> None: ...


class Pausing:
    """The gateway's admission under the names of the wire."""

    def __init__(self, gateway: PausableGateway) -> None:
        self._gateway = gateway
        self._asked = PauseAsked()

    @property
    def state(self) -> PauseState:
        now = self._gateway.admission
        return PauseState(
            paused=now.paused,
            retry_after_seconds=self._asked.retry_after_seconds,
            reason=self._asked.reason if now.paused else None,
            inflight=now.in_flight,
        )

    async def pause(self, asked: PauseAsked) -> PauseState:
        """Close admission and return at once; calls that are under way go on."""
        self._asked = asked
        if not self._gateway.admission.paused:
            thread = threading.Thread(target=self._close, name="lightning-lab-agl-pause", daemon=True)
            thread.start()
            while thread.is_alive() and not self._gateway.admission.paused:  # noqa: ASYNC110 - another thread's state
                await asyncio.sleep(_LOOK_S)
        return self.state

    async def resume(self) -> PauseState:
        """Let held calls in."""
        await asyncio.to_thread(self._gateway.resume)
        return self.state

    def _close(self) -> None:
        try:
            self._gateway.pause(deadline_s=_NEVER_S)
        except PauseCancelledError:
            pass  # resumed while calls were still under way
        except Exception:
            _log.exception("The gateway could not be paused")
