"""vLLM servers, each a program of an environment of its own, as a policy."""

from lightning_lab.policy.vllm.policy import VllmPolicy

__all__ = ["VllmPolicy"]
