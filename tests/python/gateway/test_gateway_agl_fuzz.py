"""Agent Lightning's routes, fuzzed by their own description over real HTTP: a refusal at most, no fault of ours."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest
import schemathesis
from gateway_agl import AUTH, Served
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig

from lightning_lab.gateway.agl.app import agl_routes

pytestmark = pytest.mark.fuzz

CONFIG = SchemathesisConfig.from_dict(
    {"seed": 1, "generation": {"max-examples": 3, "deterministic": True}, "phases": {"stateful": {"enabled": False}}}
)


# What the routes describe does not depend on what they work with.
api = schemathesis.openapi.from_dict(agl_routes(*[cast(Any, None)] * 3).openapi(), config=CONFIG)


@pytest.mark.timeout(600)  # many requests in one test
@api.parametrize()
@settings(deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_is_a_fault_of_ours(case: Any, served: Served) -> None:
    if "rollout_id" in case.path_parameters:
        made = httpx.post(f"{served.server.url}/api/rollouts", headers=AUTH, json=[{"input": 1, "rollout_id": "r-x"}])
        assert made.status_code in (201, 409), "409: it was deleted, and its record stays"
        case.path_parameters["rollout_id"] = "r-x"
    assert case.call(base_url=served.server.url, headers=AUTH).status_code < 500
