"""The embedded policy: one Hugging Face causal LM that samples and learns in this process."""

import os
import sys

if "torch" not in sys.modules:
    # OpenMP threads that wait by spinning take the cores that agents, browser and kernel need: on two busy cores an
    # update was ten times slower. Only effective before torch is loaded; a setting of the user's own wins.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from lightning_lab.policy.torch.policy import TorchPolicy

__all__ = ["TorchPolicy"]
