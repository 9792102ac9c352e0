"""How the gateway's routes are served, whichever they are: silently, and to nobody but their callers."""

from __future__ import annotations

import uvicorn
from starlette.types import ASGIApp

_KEEP_ALIVE_S = 120
"""Longer than clients keep idle connections, so that none is closed while a request is on its way."""


def server_config(app: ASGIApp) -> uvicorn.Config:
    """No log lines into a cell, no start-up protocol, no header that says who serves, no trust in a proxy's headers."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=2,
    )
