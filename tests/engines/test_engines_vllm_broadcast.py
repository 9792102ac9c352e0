"""Publishing by a process group of the learner and a real server: gloo here, NCCL where there are GPUs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from engines_server import checksums, send_by

from lightning_lab.policy.base import PolicyError, SharedWeight
from lightning_lab.policy.torch import sending
from lightning_lab.policy.torch.detached import DetachedTorchLearner
from lightning_lab.policy.vllm import VllmPolicy, broadcast
from lightning_lab.policy.vllm.errors import PublishError
from lightning_lab.records import Sampling

pytestmark = pytest.mark.timeout(600)  # servers are started again


def learn(learner: DetachedTorchLearner) -> None:
    """Something; what it is plays no role."""
    with torch.no_grad():
        for weight in learner._model.parameters():
            weight.mul_(1.001)


async def said(policy: VllmPolicy) -> tuple[list[int], set[int]]:
    prompt, sampling = policy.encode("The lighthouse"), Sampling(max_tokens=12, seed=5)
    chunks = [chunk async for chunk in policy.generate(prompt, sampling, rollout_id="r")]
    return [token for one in chunks for token in one.ids.tolist()], {v for one in chunks for v in one.versions.tolist()}


async def test_what_is_sent_is_what_the_files_say(
    policy: VllmPolicy, learner: DetachedTorchLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(learner)
    before = await checksums(policy)
    with monkeypatch.context() as patch:
        send_by(policy, learner, patch)
        policy.publish(policy.version + 1)
        policy.publish(policy.version + 1)  # by the same group
    sent = await checksums(policy)
    policy.publish(policy.version + 1)
    assert sent == await checksums(policy) != before


class Faulty:
    """A learner to which something happens in the middle of its weights."""

    def __init__(self, learner: DetachedTorchLearner) -> None:
        self.learner = learner
        learn(learner)

    def invite(self, receivers: int, *, towards: str, deadline_s: float) -> Mapping[str, Any]:
        return self.learner.invite(receivers, towards=towards, deadline_s=deadline_s)

    def gather(self) -> bool:
        return self.learner.gather()

    def leave(self) -> None:
        self.learner.leave()

    def send(self) -> Iterator[Sequence[SharedWeight]]:
        for number, part in enumerate(self.learner.send()):
            if number == 2:
                self.happens()
            yield part

    def happens(self) -> None: ...


class Fails(Faulty):
    def happens(self) -> None:
        raise PolicyError("Rank 0 of the learner died.")


class LosesServer(Faulty):
    pid = 0

    def happens(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("faulty", "words"), [(Fails, "Rank 0 of the learner died"), (LosesServer, "vllm-0 broke off")]
)
async def test_a_publish_that_breaks_off_leaves_the_version_before(
    policy: VllmPolicy,
    learner: DetachedTorchLearner,
    faulty: type[Faulty],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server, which has half of the weights or is gone, is started again with those before."""
    policy.publish(policy.version + 1)
    version, before = policy.version, await said(policy)
    server = policy.replicas[0].server
    assert server is not None
    broken, pid = faulty(learner), server.pid
    monkeypatch.setattr(broken, "pid", pid, raising=False)
    monkeypatch.setattr(sending, "PART_BYTES", 1 << 26)
    with monkeypatch.context() as patch:
        send_by(policy, broken, patch)
        with pytest.raises(PublishError, match=f"(?s)Version {version + 1} was not published.*{re.escape(words)}"):
            policy.publish(version + 1)
    assert server.pid != pid and await said(policy) == before == (before[0], {version})


class Elsewhere(Faulty):
    """Tells the server of a place where nobody listens, as a firewall would make it one."""

    def invite(self, receivers: int, *, towards: str, deadline_s: float) -> Mapping[str, Any]:
        told = super().invite(receivers, towards=towards, deadline_s=deadline_s)
        return {**told, "port": 9}


async def test_a_server_that_never_joins_goes_on(
    policy: VllmPolicy, learner: DetachedTorchLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the deadline; it was not touched, so it is not started again."""
    version, before = policy.version, await said(policy)
    server = policy.replicas[0].server
    assert server is not None
    pid = server.pid
    monkeypatch.setattr(broadcast, "DEADLINE_S", 2.0)
    send_by(policy, Elsewhere(learner), monkeypatch)
    with pytest.raises(PublishError, match=r"The learner at .*:9 is not reached"):
        policy.publish(version + 1)
    assert server.pid == pid and policy.version == version and await said(policy) == before
