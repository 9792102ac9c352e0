"""One open lab per process: cells are run again, and that must not leave two labs behind."""

from __future__ import annotations

import inspect
import threading
from typing import Any


class OneOpenLab(type):
    """Creating a lab with the arguments of the open one returns that one; other arguments replace it if it is idle.

    The class needs ``arguments``, ``closed``, ``refuse_if_busy()`` and ``close()``.
    """

    _lock = threading.RLock()
    _open: Any = None

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        # What `help` and completion show: a metaclass with its own `__call__` would hide it.
        signature = inspect.signature(namespace["__init__"])
        cls.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        arguments = cls._bound(*args, **kwargs)
        with OneOpenLab._lock:
            lab = OneOpenLab._open
            if lab is not None and not lab.closed:
                if lab.arguments == arguments:
                    return lab
                lab.refuse_if_busy("open a lab with other arguments")
                lab.close()
            OneOpenLab._open = None
            lab = super().__call__(**arguments)
            lab.arguments = arguments
            OneOpenLab._open = lab
            return lab

    def _bound(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The arguments by name, defaults filled in: how they were written makes no difference."""
        bound = cls.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)
