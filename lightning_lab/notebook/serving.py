"""One rollout by hand: the gateway with a key, and no notebook. What ``lightning-lab serve`` runs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from ulid import ULID

from lightning_lab.gateway.agl import AglServer
from lightning_lab.notebook.parts import AgentSettings, start_parts
from lightning_lab.notebook.policies import Policy
from lightning_lab.records import HarnessInfo, Outcome, Rollout, RolloutState, Run, Sampling, Task


class ServedRollout:
    """Starts a policy behind a gateway, for whatever agent is pointed at it. Raises what a lab's start raises."""

    def __init__(self, policy: str, *, runs: str | Path, port: int, agl_port: int | None = None) -> None:
        parts = start_parts(
            Policy.torch(policy).build(), runs, sampling=Sampling(), agents=AgentSettings(), settings={}, port=port
        )
        self._parts = parts
        self.path = parts.folder.path
        self.calls = 0
        now = time.time()
        self._run = Run(id=parts.folder.run_id, kind="single", state="running", settings={}, created_at=now)
        self._rollout = Rollout(
            id=f"r-{ULID()}",
            run_id=self._run.id,
            group_id="served",
            task=Task(id="served", prompt="", source="lightning-lab serve"),
            harness=HarnessInfo(name="by hand", version="", kind="command"),
            mode="single",
            state=RolloutState.RUNNING,
            created_at=now,
            started_at=now,
        )
        parts.store.put_run(self._run)
        parts.store.put_rollout(self._rollout)
        self._access = parts.gateway.open_rollout(self._rollout.id)
        self._agl: AglServer | None = None
        if agl_port is not None:
            self._serve_agl(agl_port)

    @property
    def instructions(self) -> str:
        """How to point an agent at it."""
        access = self._access
        return (
            f"Serving {self._parts.policy.name} on {self._parts.gateway.url}; calls are recorded in {self.path}.\n"
            f"export OPENAI_BASE_URL={access.url}/v1 OPENAI_API_KEY={access.key}\n"
            f"export ANTHROPIC_BASE_URL={access.url} ANTHROPIC_AUTH_TOKEN={access.key}\n"
            + (f"{self._agl.instructions}\n" if self._agl is not None else "")
            + "Ctrl-C stops."
        )

    def close(self) -> None:
        """End the rollout and everything that was started. Idempotent."""
        store, now = self._parts.store, time.time()
        if self._agl is not None:
            self._agl.close()
        if self._run.state == "running":
            self._parts.gateway.close_rollout(self._rollout.id)
            self._run = replace(self._run, state="finished", finished_at=now)
            store.put_rollout(
                replace(
                    self._rollout,
                    state=RolloutState.SUCCEEDED,
                    outcome=Outcome.COMPLETED,
                    verdict="not graded",
                    finished_at=now,
                )
            )
            store.put_run(self._run)
            store.flush()
            runs = [self._run.id] + ([self._agl.run_id] if self._agl is not None else [])
            self.calls = sum(store.counts(run_id)["calls"] for run_id in runs)
        self._parts.close()

    def _serve_agl(self, port: int) -> None:
        parts = self._parts
        self._agl = AglServer(parts.gateway, parts.store, model=parts.policy.name, port=port)
        try:
            self._agl.start()
        except BaseException:
            self.close()
            raise
