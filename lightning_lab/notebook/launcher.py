"""``python -m lightning_lab.notebook.launcher``: an ordinary IPython kernel with the library already imported.

It never creates a lab: that stays the first cell's decision.
"""

from __future__ import annotations

import threading
from importlib import import_module
from importlib.util import find_spec

_PRELOADED = ("lightning_lab.notebook", "lightning_lab.harnesses", "lightning_lab.tasks", "pandas", "torch")


def preload() -> None:
    """Import what the first cells will want. What is absent or broken shows its error in the cell that needs it."""
    for name in _PRELOADED:
        if find_spec(name) is not None:
            try:
                import_module(name)
            except Exception:
                continue


def main() -> None:
    from ipykernel.kernelapp import launch_new_instance

    # Beside the kernel's own start, so that it answers at once.
    threading.Thread(target=preload, name="lightning-lab-preload", daemon=True).start()
    launch_new_instance()


if __name__ == "__main__":
    main()
