"""Any server that speaks OpenAI's Chat Completions, as a policy that only answers."""

from lightning_lab.policy.openai.policy import OpenAIPolicy

__all__ = ["OpenAIPolicy"]
