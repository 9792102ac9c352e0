"""Requests of the panel: typed replies, whatever comes in."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_lab.notebook.requests import RequestError, Requests, check_schema


def requests() -> Requests:
    def refuse(_: Any) -> Any:
        raise RequestError("Nothing is running.", "Start a run first.")

    def fail(_: Any) -> Any:
        raise ZeroDivisionError("by zero")

    return Requests({"echo": lambda params: dict(params), "refuse": refuse, "fail": fail, "hello": check_schema})


def test_answers_carry_the_number_of_the_request() -> None:
    reply = requests().answer({"id": 7, "method": "echo", "params": {"a": 1}}).data
    assert reply == {"id": 7, "ok": True, "result": {"a": 1}}


def test_refusals_say_why_and_what_to_do() -> None:
    reply = requests().answer({"id": 1, "method": "refuse", "params": {}}).data
    assert reply["error"] == {"message": "Nothing is running.", "action": "Start a run first."}


def test_faults_are_replies_too() -> None:
    reply = requests().answer({"id": 1, "method": "fail", "params": {}}).data
    assert not reply["ok"] and "ZeroDivisionError" in reply["error"]["message"]


@pytest.mark.parametrize("data", [None, [], "x", {}, {"id": 1, "method": 3}, {"id": 1, "method": "echo", "params": 3}])
def test_malformed_requests_are_answered(data: Any) -> None:
    assert requests().answer(data).data["ok"] is False


def test_unknown_methods_and_other_schemas_name_the_versions() -> None:
    unknown = requests().answer({"id": 1, "method": "fly", "params": {}}).data
    assert "'fly'" in unknown["error"]["message"] and "same version" in unknown["error"]["action"]
    other = requests().answer({"id": 2, "method": "hello", "params": {"schema": 2}}).data
    assert "schema 2" in other["error"]["message"]
