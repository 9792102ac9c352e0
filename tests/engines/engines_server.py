"""The server that all tests of these folders ask."""

from __future__ import annotations

from lightning_lab.policy.vllm import VllmPolicy

MODEL = "smollm2"
CONTEXT = 4096


def socket_of(policy: VllmPolicy) -> str:
    """Where the policy's first server listens, as an address to attach to."""
    server = policy.replicas[0].server
    assert server is not None
    return f"unix://{server.socket}"
