"""The server that all tests of these folders ask."""

from __future__ import annotations

import numpy as np

from lightning_lab.policy.vllm import VllmPolicy
from lightning_lab.records import Call, Sample, Segment

MODEL = "smollm2"
CONTEXT = 4096


def socket_of(policy: VllmPolicy) -> str:
    """Where the policy's first server listens, as an address to attach to."""
    server = policy.replicas[0].server
    assert server is not None
    return f"unix://{server.socket}"


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
