"""A lab with other servers around it: a model server behind, external controllers in front."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import lightning_lab as ll
from lightning_lab.notebook import Lab, LabBusyError
from lightning_lab.policy.base import PolicyError
from lightning_lab.records import RolloutState

OpenLab = Callable[..., Lab]


def test_an_endpoints_key_is_in_nothing_that_is_shown_or_stored() -> None:
    spec = ll.Policy.openai("http://127.0.0.1:9/v1", "m", api_key="sk-secret")
    assert "sk-secret" not in f"{spec} {spec!r} {spec.describe()}"
    assert spec == ll.Policy.openai("http://127.0.0.1:9/v1", "m", api_key="sk-secret")
    assert spec != ll.Policy.openai("http://127.0.0.1:9/v1", "m", api_key="sk-other")


def test_a_lab_without_its_model_server_does_not_open(open_lab: OpenLab, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="Is it running"):
        open_lab(ll.Policy.openai("http://127.0.0.1:9/v1", "m"))
    assert not (tmp_path / "runs").exists()


def test_external_controllers_are_served_on_demand(open_lab: OpenLab) -> None:
    lab = open_lab()
    served = lab.serve_agl(key="k")
    assert lab.serve_agl() is served
    client = httpx.Client(base_url=served.url, headers={"authorization": "Bearer k"})
    [made] = client.post("/api/rollouts", json=[{"input": {"prompt": "2+2"}}]).json()
    assert lab.store.run(served.run_id).settings["agl_compat"] is True
    assert list(lab.rollouts().index) == [made["rollout_id"]] or made["rollout_id"] in str(lab.rollouts())
    assert lab.status.run == served.run_id
    with pytest.raises(LabBusyError, match="1 rollouts of AglServer"):
        open_lab(concurrency=1)
    path = f"/proxy/rollout/{made['rollout_id']}/attempt/0/mode/train/openai/v1/chat/completions"
    body = {"model": "any", "messages": [{"role": "user", "content": "2+2"}]}
    assert client.post(path, json=body).status_code == 200
    lab.close()
    assert lab.store.rollout(made["rollout_id"]).state is RolloutState.CANCELLED
    with pytest.raises(httpx.ConnectError):
        client.get("/healthz")
