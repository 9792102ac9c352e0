"""Tests that need fetched programs or many minutes run where they are asked for."""

from __future__ import annotations

import pytest

ON_DEMAND = ("tokenizers", "harnesses", "fuzz", "slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Unless ``-m`` names their marker, pytest counts them as deselected."""
    unasked = [marker for marker in ON_DEMAND if marker not in config.option.markexpr]
    left_out = [item for item in items if any(item.get_closest_marker(marker) for marker in unasked)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
