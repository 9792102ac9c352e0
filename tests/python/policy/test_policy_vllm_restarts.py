"""A server that dies or will not come back: who waits for it, when it is given up, what the errors say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from policy_vllm_recorded import Recorded, Writer

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.vllm import VllmPolicy
from lightning_lab.policy.vllm.connection import Connection, Loop
from lightning_lab.policy.vllm.errors import EngineDiedError, EngineStartError, PublishError
from lightning_lab.policy.vllm.replicas import RESTARTS, Replica, Replicas
from lightning_lab.policy.vllm.settings import Settings
from lightning_lab.records import Message, Sampling


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[Recorded]:
    made = Recorded(tmp_path, {"/v1/chat/completions/render": {"token_ids": [1, 2, 3]}})
    yield made
    made.close()


@pytest.fixture
def policy(stand_in: Recorded) -> Iterator[VllmPolicy]:
    made = VllmPolicy("quickstart", url=stand_in.url, tool_parser="hermes", learner=Writer())
    made.start()
    yield made
    made.close()


def test_conversations_wait_for_a_server_that_is_started_again(policy: VllmPolicy) -> None:
    """What has been said since belongs to rollouts that go on."""
    (replica,) = policy.replicas
    replica.ready = False
    back = threading.Timer(0.3, setattr, (replica, "ready", True))
    back.start()
    assert policy.render([Message(role="user", content="Hello")], []).ids.tolist() == [1, 2, 3]
    assert not back.is_alive() and replica.ready


def test_a_server_that_dies_all_the_time_is_given_up(tmp_path: Path) -> None:
    begun: list[Replica] = []
    loop = Loop()
    replicas = Replicas(loop, begun.append, lambda replica: setattr(replica, "ready", True))
    server: Any = SimpleNamespace(log=tmp_path / "vllm-0.log", stop=lambda: None, alive=False)
    replica = Replica(Connection("unix:///nowhere", name="vllm-0"), server)
    try:
        replicas.start([replica])
        for _ in range(RESTARTS):
            replicas.died(replica, -9)
            assert replica.ready and replica.failure is None
        replicas.died(replica, -9)
        assert len(begun) == 1 + RESTARTS and not replica.ready
        with pytest.raises(EngineDiedError, match=r"vllm-0 ended with -9 \(killed\), for the 4th time.*vllm-0\.log"):
            replicas.of("r")
    finally:
        replicas.close()
        loop.close()


def test_a_server_that_cannot_be_started_again_after_a_torn_publish(policy: VllmPolicy, stand_in: Recorded) -> None:
    """The run says both, and nobody waits for that server."""
    (replica,) = policy.replicas

    def start(_: list[str]) -> None:
        raise EngineStartError("vllm-0 ended with 1 while it started: the disk is full.")

    stopped: list[bool] = []
    stub: Any = SimpleNamespace(pid=7, start=start, stop=lambda: stopped.append(True), log=Path("vllm-0.log"))
    replica.server = stub
    assert policy._fleet is not None
    policy._fleet._settings = Settings(cpu=True, dtype="float32", context_length=64)
    stand_in.answers["/collective_rpc"] = (500, {"error": {"message": "Worker failed with error 'half a file'"}})
    with pytest.raises(PublishError, match=r"(?s)half a file.*could not go back to 0.*the disk is full.*resume"):
        policy.publish(1)
    assert stopped and policy.version == 0
    with pytest.raises(PolicyError, match="the disk is full"):
        policy.render([Message(role="user", content="Hello")], [])


def test_a_server_that_comes_back_is_asked_when_it_has_the_weights(policy: VllmPolicy, stand_in: Recorded) -> None:
    """It may have come back with its first ones; calls that waited for it must not be sampled from those."""
    (replica,) = policy.replicas
    replica.ready = False
    assert policy._fleet is not None
    policy._fleet.version = 1
    stand_in.asked.clear()

    async def replied() -> list[Any]:
        return [one async for one in policy.generate(np.array([7], np.int32), Sampling(), rollout_id="r")]

    call = threading.Thread(target=asyncio.run, args=(replied(),))
    stand_in.answers["/collective_rpc"] = lambda _: time.sleep(0.3) or {}  # type: ignore[func-returns-value]
    call.start()
    policy._fleet._prepare(replica)
    call.join()
    *before, last = stand_in.asked
    assert replica.ready and last[1]["token_ids"] == [7]
    assert "/reset_prefix_cache?reset_running_requests=true" in [path for path, _ in before]
    assert [7] not in [body["token_ids"] for path, body in before if path == "/inference/v1/generate"]


@pytest.mark.parametrize("path", ["/pause?mode=keep", "/resume"])
def test_a_server_that_does_not_hear_whether_to_sample_is_started_again(
    policy: VllmPolicy, stand_in: Recorded, path: str
) -> None:
    """It would go on with weights that change under it, or stand still for ever."""
    (replica,) = policy.replicas
    ended: list[int] = []
    stub: Any = SimpleNamespace(pid=7, kill=ended.append, stop=lambda: None)
    replica.server = stub
    stand_in.answers[path] = (200, ConnectionResetError)
    policy.freeze()
    policy.thaw()
    assert ended == [7]


def test_a_server_that_comes_back_while_the_others_stand_still_does_too(policy: VllmPolicy, stand_in: Recorded) -> None:
    """Its first reply takes long and needs it to go on: until that is there, it is told nothing."""
    (replica,) = policy.replicas
    fleet = policy._fleet
    assert fleet is not None
    replica.ready = False
    ready: list[bool] = []
    reply = stand_in.answers["/inference/v1/generate"]

    def first(_: Any) -> Any:
        ready.append(replica.ready)
        freezing.start()
        return reply

    freezing = threading.Thread(target=policy.freeze)
    stand_in.answers["/inference/v1/generate"] = first
    stand_in.asked.clear()
    fleet._prepare(replica)
    freezing.join()
    assert ready == [False] and replica.ready
    assert stand_in.paths()[-1] == "/pause?mode=keep"


def test_a_server_that_is_started_again_with_the_weights_before(policy: VllmPolicy, stand_in: Recorded) -> None:
    """While another one still reads the new ones: the old must not have the new version."""
    (replica,) = policy.replicas
    fleet = policy._fleet
    assert fleet is not None
    each, earlier = fleet._replicas.each, fleet._weights.current

    def restarted(work: Any) -> None:
        each(work)
        replica.holds = earlier

    fleet._replicas.each = restarted  # type: ignore[method-assign]
    with pytest.raises(PublishError, match=r"0 samples on: .*started again meanwhile"):
        policy.publish(1)
    assert ("/update_weight_version", {"new_version": "1"}) not in stand_in.asked
    assert policy.version == 0 and replica.failure is None


def test_a_server_that_started_while_others_were_published_reads_those(policy: VllmPolicy, stand_in: Recorded) -> None:
    (replica,) = policy.replicas
    stub: Any = SimpleNamespace(stop=lambda: None)
    replica.server, replica.holds = stub, Path("v0")
    fleet = policy._fleet
    assert fleet is not None
    fleet.version = 1
    stand_in.asked.clear()
    fleet._prepare(replica)
    asked = dict(stand_in.asked)
    assert asked["/collective_rpc"]["kwargs"]["weights_path"] == str(fleet._weights.current)
    assert stand_in.paths().index("/collective_rpc") < stand_in.paths().index("/update_weight_version")
    assert replica.version == 1 and replica.holds == fleet._weights.current


def test_a_server_that_was_away_when_the_others_went_on_goes_on(policy: VllmPolicy, stand_in: Recorded) -> None:
    """It was this lab that paused it."""
    (replica,) = policy.replicas
    assert policy._fleet is not None
    policy.freeze()
    replica.ready = False
    policy.thaw()
    stand_in.answers["/is_paused"] = {"is_paused": True}
    policy._fleet._prepare(replica)
    assert stand_in.paths()[-1] == "/resume" and replica.ready
