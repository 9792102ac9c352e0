"""The reconcile loop and its local runner. Imported lazily: the fork server lives in this package and stays light."""

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_lab.controller.controller import Controller, ControllerError, Credentials
    from lightning_lab.controller.limits import Limits

logging.getLogger(__name__).addHandler(logging.NullHandler())  # the controller's thread never prints

__all__ = ["Controller", "ControllerError", "Credentials", "Limits"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lightning_lab.controller import controller

    return getattr(controller, name)
