"""Weights sent over a process group: a real learner and the servers' own end of the group; only vLLM is a stand-in."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from policy_vllm_recorded import Recorded, Writer
from safetensors.torch import load_file

from lightning_lab.policy.base import PolicyError, SharedWeight
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.policy.engine_side.lightning_lab_group import Group, GroupError, Meeting, joined
from lightning_lab.policy.torch import sending
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.torch.sending import Sender, described, parts
from lightning_lab.policy.verl import VerlLearner
from lightning_lab.policy.vllm import VllmPolicy, broadcast
from lightning_lab.policy.vllm.connection import Connection
from lightning_lab.policy.vllm.errors import PublishError

JOIN, TAKE = "/init_weight_transfer_engine", "/update_weights"


class Receiver(Recorded):
    """A server that keeps what it is sent."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, {"/get_world_size": {"world_size": 1}, JOIN: self.join, TAKE: self.take}, name=name)
        self.group: Group | None = None
        self.weights: dict[str, torch.Tensor] = {}

    def join(self, body: Any) -> Any:
        told = body["init_info"]
        try:
            self.group = joined(Meeting(**told["meeting"]), told["rank_offset"])
        except GroupError as error:
            return refused(error)
        return {}

    def take(self, body: Any) -> Any:
        told = body["update_info"]
        kinds = zip(told["shapes"], told["dtype_names"], strict=True)
        weights = [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in kinds]
        assert self.group is not None
        try:
            self.group.broadcast(weights)
        except GroupError as error:
            return refused(error)
        self.weights.update(zip(told["names"], weights, strict=True))
        return {}


def refused(error: BaseException | str) -> Any:
    return 500, {"error": {"message": str(error)}}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts of the shipped model, and nobody waits for a minute."""
    monkeypatch.setattr(sending, "PART_BYTES", 1 << 19)
    monkeypatch.setattr(broadcast, "DEADLINE_S", 2.0)
    monkeypatch.setattr(broadcast, "_ANSWER_S", 1.0)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Receiver]]:
    made = [Receiver(tmp_path, name) for name in ("one", "two")]
    yield made
    for server in made:
        server.close()


@pytest.fixture
def learner() -> DetachedTorchLearner:
    return DetachedTorchLearner("quickstart")


@pytest.fixture
def policy(servers: list[Receiver], learner: DetachedTorchLearner) -> Iterator[VllmPolicy]:
    made = VllmPolicy("quickstart", url=[server.url for server in servers], learner=learner, transfer="nccl")
    made.start()
    yield made
    made.close()


def learned(learner: DetachedTorchLearner, folder: Path) -> dict[str, torch.Tensor]:
    """Other weights than the model's, as the learner writes them."""
    learner.start()
    with torch.no_grad():
        for weight in learner._model.parameters():
            weight.add_(0.5)
    learner.export(folder)
    return load_file(folder / "model.safetensors")


def test_every_server_has_the_learners_weights(
    policy: VllmPolicy, servers: list[Receiver], learner: DetachedTorchLearner, tmp_path: Path
) -> None:
    wanted = learned(learner, tmp_path)
    policy.publish(1)
    for server in servers:
        assert server.weights.keys() == wanted.keys()
        assert all(torch.equal(server.weights[name], weight) for name, weight in wanted.items())
        paths = [path for path in server.paths() if path != "/inference/v1/generate"]
        asked = paths[paths.index("/pause?mode=keep") :]
        assert asked[1:4] == ["/get_world_size", JOIN, "/start_weight_update"] and asked.count(TAKE) > 2
        assert asked[asked.index("/finish_weight_update") :] == [
            "/finish_weight_update",
            "/update_weight_version",
            "/reset_prefix_cache?reset_running_requests=true",
            "/resume",
        ]
    offsets = [dict(server.asked)[JOIN]["init_info"]["rank_offset"] for server in servers]
    assert offsets == [1, 2] and policy.version == 1


def test_a_group_lasts_until_a_server_is_started_again(
    policy: VllmPolicy, servers: list[Receiver], learner: DetachedTorchLearner, tmp_path: Path
) -> None:
    policy.publish(1)
    policy.publish(2)
    assert [server.paths().count(JOIN) for server in servers] == [1, 1]
    assert policy._fleet is not None
    policy._fleet._prepare(policy.replicas[1])
    wanted = learned(learner, tmp_path)
    policy.publish(3)
    assert [server.paths().count(JOIN) for server in servers] == [2, 2]
    assert all(torch.equal(servers[1].weights[name], weight) for name, weight in wanted.items())


def test_a_server_that_never_joins(policy: VllmPolicy, servers: list[Receiver]) -> None:
    """Nothing was touched then: both keep their weights, and the next publish may find them well."""
    servers[1].answers[JOIN] = lambda _: time.sleep(2.5) or {}  # type: ignore[func-returns-value]
    with pytest.raises(PublishError, match=r"0 samples on: .*1 of 3 members did not join within 2 s"):
        policy.publish(1)
    for server in servers:
        assert "/start_weight_update" not in server.paths() and "/collective_rpc" not in server.paths()
        assert server.paths()[-1] == "/resume"
    assert policy.version == 0 and all(replica.failure is None for replica in policy.replicas)
    servers[1].answers[JOIN] = servers[1].join
    policy.publish(1)
    assert policy.version == 1 and servers[1].weights


def test_a_server_that_refuses_to_join_is_not_waited_for(
    policy: VllmPolicy, servers: list[Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor by the server that has joined."""
    monkeypatch.setattr(broadcast, "DEADLINE_S", 1000.0)
    servers[1].answers[JOIN] = refused("It cannot reach 10.0.0.1.")
    with pytest.raises(PublishError, match=r"0 samples on: .*It cannot reach 10\.0\.0\.1\."):
        policy.publish(1)
    assert servers[0].group is None and servers[0].paths()[-1] == "/resume"


def refuses(server: Receiver) -> None:
    def take(body: Any) -> Any:
        if not server.weights:
            return server.take(body)
        assert server.group is not None
        server.group.close()
        return refused("There is no space for lm_head.weight.")

    server.answers[TAKE] = take


def dies(server: Receiver) -> None:
    def take(body: Any) -> Any:
        assert server.group is not None
        server.group.close()
        return 200, ConnectionResetError

    server.answers[TAKE] = take


def hangs(server: Receiver) -> None:
    def take(body: Any) -> Any:
        time.sleep(3.5)
        return {}

    server.answers[TAKE] = take


@pytest.mark.parametrize(
    ("fault", "words"),
    [(refuses, "no space for lm_head"), (dies, "broke off"), (hangs, "did not answer|did not arrive")],
)
def test_a_server_that_fails_half_way(policy: VllmPolicy, servers: list[Receiver], fault: Any, words: str) -> None:
    """Nobody here can start these again, and none of them is sampled from: each may hold a mixture."""
    fault(servers[1])
    began = time.monotonic()
    with pytest.raises(PublishError, match=f"(?s)Version 1 was not published, 0 samples on: .*({words})"):
        policy.publish(1)
    assert time.monotonic() - began < 60.0  # not for ever
    assert policy.version == 0 and not any("/finish_weight_update" in server.paths() for server in servers)
    assert all("mixture" in str(replica.failure) for replica in policy.replicas)


class Rank:
    """In the place of verl's processes: rank 0's end of the group, and weights of the shipped model."""

    def __init__(self) -> None:
        self.sender = Sender()
        self.gather, self.leave = self.sender.gather, self.sender.leave

    def ask(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def export(self, directory: Path) -> None:
        Writer().export(directory)

    def invite(self, receivers: int, towards: str, deadline_s: float) -> Any:
        cpu = torch.device("cpu")
        return self.sender.invite(receivers, towards="localhost", device=cpu, deadline_s=deadline_s)

    def offer(self, first: bool) -> list[SharedWeight]:
        if first:
            self.parts = parts(load_file(resolve_model("quickstart") / "model.safetensors").items())
        self.lent = next(self.parts, [])
        return described(self.lent)

    def send(self) -> None:
        self.sender.send(self.lent)


def test_ranks_of_verl_leave_the_group_when_a_server_cannot_keep_what_it_was_sent(servers: list[Receiver]) -> None:
    def take(body: Any) -> Any:
        servers[1].take(body)
        return refused("There is no space for lm_head.weight.")

    servers[1].answers[TAKE] = take
    learner, rank = VerlLearner("quickstart"), Rank()
    learner._driver = rank  # type: ignore[assignment]
    policy = VllmPolicy("quickstart", url=[server.url for server in servers], learner=learner, transfer="nccl")
    try:
        with pytest.raises(PublishError, match="no space for lm_head"):
            policy.publish(1)
        assert servers[1].weights and rank.sender._group is None
    finally:
        learner._driver = None
        policy.close()


class Breaking(DetachedTorchLearner):
    """Its memory is full after the first part, or it has lost a weight."""

    fault = ""

    def send(self) -> Iterator[Sequence[SharedWeight]]:
        for number, part in enumerate(super().send()):
            if self.fault == "memory" and number == 1:
                raise MemoryError("CUDA out of memory")
            yield part[1:] if self.fault == "lost" and number == 0 else part


def test_a_learner_that_fails_half_way(servers: list[Receiver]) -> None:
    """The servers do not wait for it until their deadline: its end of the group is closed."""
    learner = Breaking("quickstart")
    policy = VllmPolicy("quickstart", url=[server.url for server in servers], learner=learner, transfer="nccl")
    try:
        policy.publish(1)
        learner.fault = "memory"
        with pytest.raises(PublishError, match=r"1 samples on: The learner's weights did not leave it.*out of memory"):
            policy.publish(2)
        assert policy.version == 1 and learner._sender._group is None
        for server in servers:
            assert server.group is not None
            with pytest.raises(GroupError):
                server.group.broadcast([torch.zeros(4)])
    finally:
        policy.close()


def test_a_group_is_opened_where_the_farthest_server_reaches_it(servers: list[Receiver]) -> None:
    """Not on the loopback for the sake of one that is on the lab's own machine."""
    asked: list[str] = []

    class Asked(DetachedTorchLearner):
        def invite(self, receivers: int, *, towards: str, deadline_s: float) -> Any:
            asked.append(towards)
            raise PolicyError("It is enough to know where.")

    policy = VllmPolicy(
        "quickstart", url=[server.url for server in servers], learner=Asked("quickstart"), transfer="nccl"
    )
    try:
        policy.start()
        for replica, url in zip(policy.replicas, ("http://localhost:8000", "http://far:8000"), strict=True):
            replica.connection.host = Connection(url, name="").host
        with pytest.raises(PublishError, match="enough"):
            policy.publish(1)
    finally:
        policy.close()
    assert asked == ["far"]


def test_what_cannot_be_is_refused() -> None:
    learner = DetachedTorchLearner("quickstart")
    with pytest.raises(PolicyError, match=r"transfer is 'rdma'; it must be one of files, ipc, nccl\."):
        VllmPolicy("quickstart", learner=learner, transfer="rdma")  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="needs a learner that sends its weights"):
        VllmPolicy("quickstart", transfer="nccl")
    with pytest.raises(PolicyError, match=r"collocated servers are on the learner's own: use transfer='ipc'"):
        VllmPolicy("quickstart", learner=learner, transfer="nccl", collocated=True)
    learner.start()
    with pytest.raises(PolicyError, match=r"cannot listen for servers towards nowhere\.invalid"):
        learner.invite(1, towards="nowhere.invalid", deadline_s=1.0)
    with pytest.raises(PolicyError, match="in no group"):
        list(learner.send())
