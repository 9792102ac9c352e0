"""Agents in pods, from the notebook: what must be there, and in which words it says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import lightning_lab as ll
from lightning_lab.controller.kubernetes.settings import ClusterError
from lightning_lab.harnesses import HarnessError

AGENT = ll.Harness.kubernetes("registry/agent:1")


async def test_a_pod_needs_a_cluster(open_lab: Callable[..., ll.Lab]) -> None:
    with pytest.raises(HarnessError, match=r"lab\.kubernetes"):
        await open_lab().run(AGENT, "2+2")


def test_a_gateway_on_loopback_is_of_no_use_to_pods(open_lab: Callable[..., ll.Lab]) -> None:
    with pytest.raises(ClusterError, match="host="):
        open_lab().kubernetes(namespace="agents")


def test_a_cluster_that_does_not_answer_is_not_used(open_lab: Callable[..., ll.Lab], tmp_path: Path) -> None:
    named = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    known = {
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps({"current-context": "c", "clusters": [named], **known}))
    lab = open_lab()
    for _ in range(2):  # a start that fails leaves nothing in the way of the next
        with pytest.raises(ClusterError, match="did not answer"):
            lab.kubernetes(namespace="agents", gateway_url="http://10.0.0.5:8090", kubeconfig=str(kubeconfig))
