"""What the tests of the quickstart model share."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_lab.policy.catalog import resolve_model
from lightning_lab.tokens import ChatCodec


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return resolve_model("quickstart")


@pytest.fixture(scope="session")
def codec(checkpoint: Path) -> ChatCodec:
    return ChatCodec(checkpoint)
