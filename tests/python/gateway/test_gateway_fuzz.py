"""The whole interface, fuzzed by its own description: any body, any parameter, over real HTTP; never a fault of ours.

Schemathesis makes requests that fit the OpenAPI document and requests that break it in every single place, and checks
each answer against it: status, content type, and the shape of replies and refusals.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from gateway_lab import Lab, tool_call
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from lightning_lab.gateway.openapi import document
from lightning_lab.gateway.protocols.fields import image_place

pytestmark = pytest.mark.fuzz

CONFIG = SchemathesisConfig.from_dict(
    {"seed": 1, "generation": {"max-examples": 12, "deterministic": True}, "phases": {"stateful": {"enabled": False}}}
)
REPLIES = [
    "said",
    "",
    "<think>why</think>because",
    "<think>only a thought</think>",
    tool_call("f", {"n": 10**30, "s": "\u2028\x00"}) + tool_call("g", {}),
    '<tool_call>{"name": "h", "arguments": [1, "x", null]}</tool_call>',
    "\x00\x1b[31m\ufffe " + "x" * 5000,
]
"""What the model says, by turns."""
api = schemathesis.openapi.from_dict(document(), config=CONFIG)


@pytest.fixture
def fuzzed(make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    """A lab in which every failed call would be a fault of ours."""
    replies = itertools.cycle(REPLIES)
    lab = make_lab(lambda _: next(replies))
    yield lab
    assert lab.gateway.admission.in_flight == lab.gateway.admission.held == 0
    assert lab.gateway.faults("r-1") == []


@pytest.mark.timeout(600)  # many requests in one test
@api.parametrize()
@settings(deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_is_the_one_that_is_described(case: Any, fuzzed: Lab) -> None:
    if "rollout" in case.path_parameters:
        case.path_parameters["rollout"] = "r-1"
    key = {"authorization": f"Bearer {fuzzed.access.key}"}
    response = case.call(base_url=fuzzed.gateway.url, headers=key)
    shown = image_in(case.body)
    unread = [positive_data_acceptance] if shown else []  # the document says so: this policy reads text alone
    case.validate_response(response, excluded_checks=[ignored_auth, *unread])
    if shown:
        assert 400 <= response.status_code < 500
    if shown and case.meta.generation.mode.is_positive and response.status_code not in (401, 403):
        assert response.json()["error"]["message"].startswith(f"{shown} is an image")


def image_in(body: Any) -> str:
    """Where a conversation shows one; empty where it does not."""
    told = body if isinstance(body, dict) else {}
    return next((place for key in ("messages", "input") if (place := image_place(told.get(key), key))), "")


def test_the_document_is_served(lab: Lab) -> None:
    assert httpx.get(lab.gateway.url + "/openapi.json").json() == document()
