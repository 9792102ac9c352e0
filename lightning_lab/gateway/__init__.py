"""The gateway: what agents talk to. It attributes every model call to its rollout and keeps its exact tokens."""

import logging

from lightning_lab.gateway.admission import AdmissionState, PauseCancelledError, PauseReport
from lightning_lab.gateway.auth import Access
from lightning_lab.gateway.capture import Patience
from lightning_lab.gateway.errors import GatewayError
from lightning_lab.gateway.server import Gateway

__all__ = ["Access", "AdmissionState", "Gateway", "GatewayError", "Patience", "PauseCancelledError", "PauseReport"]

# A background thread must not print: without a handler, Python writes warnings of these loggers to stderr.
for _name in ("lightning_lab", "uvicorn"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
