from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_lab.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.sqlite") as opened:
        yield opened
