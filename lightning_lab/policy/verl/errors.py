"""What can go wrong with a learner that runs on a cluster. All are `PolicyError`; each says what to do."""

from __future__ import annotations

from lightning_lab.policy.base import PolicyError

GO_ON = "Open the lab again with ll.Lab(…, resume=run_id): trainer.resume(run_id) goes on from the latest checkpoint."


class SettingsError(PolicyError):
    """verl knows no such setting, or not such a value."""


class ClusterError(PolicyError):
    """The Ray cluster cannot be reached or has not what is asked."""


class LearnerLostError(PolicyError):
    """A part of the learner died: a rank, the cluster's head, or the process that drives them.

    The weights since the last checkpoint are lost with it. Loading a checkpoint starts it again.
    """
