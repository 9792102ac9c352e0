"""Which controller runs a rollout: the lab's own, that of a cluster, or an external one."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from lightning_lab.controller import Controller, Sandbox
from lightning_lab.controller.kubernetes.settings import Cluster, ClusterError
from lightning_lab.controller.retries import NEVER, Retries
from lightning_lab.harnesses import Harness, HarnessError
from lightning_lab.records import Rollout, Sampling
from lightning_lab.tasks import Grader, posted

if TYPE_CHECKING:
    from lightning_lab.gateway.agl import AglServer


class Controllers:
    """Takes every rollout to the controller that can run its harness. Thread-safe."""

    def __init__(self, own: Controller) -> None:
        self._own = own
        self.external: AglServer | None = None
        self.cluster: Controller | None = None

    @property
    def concurrency(self) -> int:
        """How many agents of this machine may run at one time now."""
        return self._own.concurrency

    @property
    def limit(self) -> tuple[int, str]:
        """How many agents may run at one time where they run now, and who says so: ``default`` (four per core),
        ``set``, ``auto``, or ``cluster``, which has a limit of its own."""
        if self.cluster is not None and self.cluster.running:
            return self.cluster.concurrency, "cluster"
        return self._own.concurrency, self._own.concurrency_by

    @property
    def sandbox(self) -> Sandbox | None:
        """What shuts in the agents of this machine."""
        return self._own.sandbox

    def submit(
        self,
        rollout: Rollout,
        harness: Harness,
        grader: Grader | None,
        *,
        sampling: Sampling | None = None,
        retries: Retries = NEVER,
    ) -> Future[Rollout]:
        """Queue a rollout; the future gives the terminal record, after its commit. External controllers retry
        by rules of their own.

        Raises what `Controller.submit` raises, and `HarnessError` when nobody here can run the harness.
        """
        if harness.job:
            if self.cluster is None:
                raise HarnessError(f"{harness.name} runs in a pod. Call lab.kubernetes(…) first.")
            return self.cluster.submit(rollout, harness, grader, sampling=sampling, retries=retries)
        if not harness.external:
            return self._own.submit(rollout, harness, grader, sampling=sampling, retries=retries)
        if self.external is None:
            raise HarnessError(f"{harness.name} is run by Agent Lightning's controller. Call lab.serve_agl() first.")
        if grader is not None and grader is not posted:
            raise HarnessError(
                f"{harness.name} leaves nothing behind to grade: its agents post their own rewards. "
                "Use the grader ll.tasks.posted."
            )
        rollout = replace(rollout, harness=harness.info)
        return self.external.hand_out(rollout, harness.external, sampling=sampling, must_reward=grader is not None)

    def use_cluster(self, cluster: Cluster, concurrency: int) -> None:
        """Run pods in this cluster, so many at a time; the one in use goes on where the settings are the same.

        Raises `ClusterError`, also while rollouts run in another cluster.
        """
        if self.cluster is not None and self.cluster.cluster == cluster:
            self.cluster.concurrency = concurrency
            return
        if self.cluster is not None:
            if self.cluster.running:
                raise ClusterError(f"{self.cluster.running} rollouts run in the cluster in use: wait for them first.")
            self.cluster.close()
            self.cluster = None
        controller = self._own.for_cluster(cluster, concurrency)
        controller.start()
        self.cluster = controller

    def cancel(self, rollout_id: str) -> None:
        """End one rollout as cancelled, wherever it is; one that is over is left alone."""
        self._own.cancel(rollout_id)
        if self.cluster is not None:
            self.cluster.cancel(rollout_id)
        if self.external is not None:
            self.external.cancel(rollout_id)

    def close(self) -> None:
        """End all rollouts, and stop serving the external controller. Idempotent."""
        if self.external is not None:
            self.external.close()
        if self.cluster is not None:
            self.cluster.close()
        self._own.close()
