"""Labs and kernels for the notebook's tests; everything that a test starts is ended, and that is checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from notebook_kernels import Kernel, own_children, wait_until
from notebook_standin import StandInPolicy

from lightning_lab.notebook import Lab


@pytest.fixture
def open_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Opens labs with the stand-in policy; afterwards none of their threads or processes may be left."""
    threads_before = set(threading.enumerate())
    opened: list[Lab] = []

    def make(policy: Any = None, **options: Any) -> Lab:
        lab = Lab(policy or StandInPolicy(), **{"runs": tmp_path / "runs", "concurrency": 4, **options})
        opened.append(lab)
        return lab

    yield make
    for lab in opened:
        lab.close()
    left = [thread.name for thread in set(threading.enumerate()) - threads_before if "asyncio" not in thread.name]
    assert not left
    wait_until(lambda: not own_children(), f"processes to end: {own_children()}", 10)


@pytest.fixture(scope="module")
def shared_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    started = Kernel(tmp_path_factory.mktemp("kernel"))
    yield started
    started.close()


@pytest.fixture
def kernel(shared_kernel: Kernel) -> Kernel:
    """The module's kernel, with nothing of the test before: its lab is closed, its messages are forgotten."""
    shared_kernel.run("if 'lab' in globals(): lab.close()")
    shared_kernel.messages.clear()
    return shared_kernel
