"""The embedded policy: one Hugging Face causal LM that samples and learns in this process."""

from lightning_lab.policy.torch.policy import TorchPolicy

__all__ = ["TorchPolicy"]
