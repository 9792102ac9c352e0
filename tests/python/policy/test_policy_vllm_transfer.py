"""Weights handed over in GPU memory: what a server is asked on the wire. The GPU itself is not part of it."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from policy_vllm_recorded import Recorded

from lightning_lab.policy.base import PolicyError, SharedWeight
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.vllm import VllmPolicy
from lightning_lab.policy.vllm.errors import PublishError
from lightning_lab.policy.vllm.settings import Settings
from lightning_lab.policy.vllm.weights import described
from lightning_lab.records import Floats, Sample

SHAPES = described(resolve_model("quickstart"))


class Sharer:
    """A learner with all weights of the shipped model, in two parts."""

    def __init__(self) -> None:
        self.withheld = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def logprobs(self, samples: Sequence[Sample], *, temperature: float) -> Sequence[Floats]:
        return []

    def export(self, directory: Path) -> None:
        for file in resolve_model("quickstart").glob("*.safetensors"):
            (directory / file.name).symlink_to(file)

    def share(self) -> Iterator[Sequence[SharedWeight]]:
        names = list(SHAPES)
        for part in (names[:3], names[3 : len(names) - self.withheld]):
            yield [SharedWeight(name, "float32", SHAPES[name], {"GPU-1": (name, 0)}) for name in part]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Recorded]]:
    made = [Recorded(tmp_path, {}, name=name) for name in ("one", "two")]
    yield made
    for server in made:
        server.close()


@pytest.fixture
def learner() -> Sharer:
    return Sharer()


@pytest.fixture
def policy(servers: list[Recorded], learner: Sharer) -> Iterator[VllmPolicy]:
    made = VllmPolicy("quickstart", url=[server.url for server in servers], learner=learner, transfer="ipc")
    made.start()
    yield made
    made.close()


def test_every_server_takes_all_weights_while_nothing_is_sampled(policy: VllmPolicy, servers: list[Recorded]) -> None:
    for server in servers:
        assert ("/init_weight_transfer_engine", {"init_info": {"packed": False}}) in server.asked
        server.asked.clear()
    policy.publish(1)
    for server in servers:
        assert server.paths() == [
            "/pause?mode=keep",
            "/start_weight_update",
            "/update_weights",
            "/update_weights",
            "/finish_weight_update",
            "/update_weight_version",
            "/reset_prefix_cache?reset_running_requests=true",
            "/resume",
        ]
        told = [body["update_info"] for path, body in server.asked if path == "/update_weights"]
        assert [name for part in told for name in part["names"]] == list(SHAPES)
        assert [tuple(shape) for part in told for shape in part["shapes"]] == list(SHAPES.values())
        assert {kind for part in told for kind in part["dtype_names"]} == {"float32"}
        handles = [one for part in told for one in pickle.loads(base64.b64decode(part["ipc_handles_pickled"]))]
        assert handles == [{"GPU-1": (name, 0)} for name in SHAPES]
    assert policy.version == 1


def test_weights_that_are_missing_are_not_sampled_with(
    policy: VllmPolicy, servers: list[Recorded], learner: Sharer
) -> None:
    """Both servers may hold a mixture then, and nobody here can start them again."""
    learner.withheld = 1
    with pytest.raises(PublishError, match=f"Version 1 was not published, 0 samples on.*{list(SHAPES)[-1]}"):
        policy.publish(1)
    assert not any("/finish_weight_update" in server.paths() for server in servers)
    assert policy.version == 0 and all(replica.failure is not None for replica in policy.replicas)


def test_a_server_is_started_so_that_it_takes_handles(tmp_path: Path) -> None:
    settings = Settings(cpu=False, dtype="bfloat16", context_length=64, transfer="ipc", unpickles=True)
    arguments = settings.arguments(tmp_path)
    assert arguments[arguments.index("--weight-transfer-config") + 1] == '{"backend": "ipc"}'
    assert settings.environment()["VLLM_ALLOW_INSECURE_SERIALIZATION"] == "1"
    plain = Settings(cpu=False, dtype="bfloat16", context_length=64)
    assert "--weight-transfer-config" not in plain.arguments(tmp_path)
    assert "VLLM_ALLOW_INSECURE_SERIALIZATION" not in plain.environment()


def test_what_cannot_be_handed_over_is_refused() -> None:
    with pytest.raises(PolicyError, match="learner that shares its weights"):
        VllmPolicy("quickstart", transfer="ipc")
    with pytest.raises(PolicyError, match="on a GPU only, and the learner's are on cpu"):
        next(DetachedTorchLearner("quickstart").share())
