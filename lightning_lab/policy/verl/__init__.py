"""Learning with verl's training workers in a Ray worker group, on the GPUs of one node or many, or on CPUs.

kernel (`learner`, `process`) → a process of its own that drives Ray (`driver`, `cluster`) → one `worker` per rank. The
driver is apart because Ray ends a process whose head node is lost, and a notebook's kernel must outlive that; and so
the kernel needs neither verl nor Ray in its environment. Nothing here imports either of them: verl itself imports
`platform` while it is being imported.
"""

from lightning_lab.policy.verl.learner import VerlLearner
from lightning_lab.policy.verl.settings import VerlSettings

__all__ = ["VerlLearner", "VerlSettings"]
