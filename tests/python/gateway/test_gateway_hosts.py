"""By which names a gateway may be called."""

from __future__ import annotations

import pytest

from lightning_lab.gateway.auth import check_host, served_hosts
from lightning_lab.gateway.errors import Fault


def is_served(bound: str, called: str) -> bool:
    try:
        check_host([(b"host", called.encode())], served_hosts(bound))
    except Fault:
        return False
    return True


@pytest.mark.parametrize("bound", ["127.0.0.1", "10.0.0.5", "0.0.0.0", "::"])
def test_no_gateway_answers_to_a_foreign_name(bound: str) -> None:
    assert not is_served(bound, "rebound.example:8090")
    assert is_served(bound, "127.0.0.1:8090")


def test_a_gateway_of_one_address_answers_to_that_alone() -> None:
    assert is_served("10.0.0.5", "10.0.0.5:8090")
    assert not is_served("10.0.0.5", "10.0.0.6:8090")


def test_a_gateway_of_every_address_answers_to_any() -> None:
    assert is_served("0.0.0.0", "10.0.0.6:8090")
    assert is_served("::", "[fd00::6]:8090")
