"""The server that all tests of these folders ask."""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp
import numpy as np
import pytest

from lightning_lab.policy.base import Chunk, SendsWeights
from lightning_lab.policy.vllm import VllmPolicy
from lightning_lab.policy.vllm.broadcast import Broadcast
from lightning_lab.records import Call, Sample, Segment

MODEL = "smollm2"
CONTEXT = 4096
TAKES_WEIGHTS = {"weight_transfer_config": '{"backend": "lightning_lab"}'}
"""Options of a server that also takes weights that are sent to it."""


def socket_of(policy: VllmPolicy) -> str:
    """Where the policy's first server listens, as an address to attach to."""
    server = policy.replicas[0].server
    assert server is not None
    return f"unix://{server.socket}"


def send_by(policy: VllmPolicy, learner: SendsWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish by a group of ``learner`` and the server, which was started for it."""
    monkeypatch.setattr(policy._fleet, "_transfer", Broadcast(learner))


def whole(chunks: Sequence[Chunk]) -> Chunk:
    """A reply of the chunks in which it came."""
    return Chunk(
        ids=np.concatenate([chunk.ids for chunk in chunks]),
        logprobs=np.concatenate([chunk.logprobs for chunk in chunks]),
        versions=np.concatenate([chunk.versions for chunk in chunks]),
        finish_reason=chunks[-1].finish_reason,
    )


def sample_of(call: Call) -> Sample:
    """The call alone, as a learner reads it."""
    start, stop = len(call.prompt_ids), len(call.prompt_ids) + len(call.sampled_ids)
    return Sample(
        rollout_id=call.rollout_id,
        ids=np.concatenate([call.prompt_ids, call.sampled_ids]),
        mask=np.arange(stop) >= start,
        logprobs=np.concatenate([np.zeros(start, np.float32), call.logprobs]),
        versions=np.concatenate([np.full(start, -1, np.int32), call.versions]),
        segments=(Segment(call_id=call.id, start=start, stop=stop),),
    )


async def checksums(policy: VllmPolicy) -> dict[str, str]:
    """Of the first server's weights, by its own sums."""
    connector = aiohttp.UnixConnector(socket_of(policy).removeprefix("unix://"))
    url, asked = "http://l/weight_checker", {"action": "checksum"}
    async with aiohttp.ClientSession(connector=connector) as session, session.post(url, json=asked) as response:
        found: dict[str, str] = (await response.json())["checksums"]
    return found
