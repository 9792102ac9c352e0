"""The reconcile loop and its local runner. Imported lazily: the fork server lives in this package and stays light."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_lab.controller.controller import Controller, ControllerError, Credentials
    from lightning_lab.controller.limits import Limits
    from lightning_lab.controller.sandbox import Sandbox, SandboxError

logging.getLogger(__name__).addHandler(logging.NullHandler())  # the controller's thread never prints

_HOMES = {
    "Controller": "controller",
    "ControllerError": "controller",
    "Credentials": "controller",
    "Limits": "limits",
    "Sandbox": "sandbox",
    "SandboxError": "sandbox",
}

__all__ = ["Controller", "ControllerError", "Credentials", "Limits", "Sandbox", "SandboxError"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
