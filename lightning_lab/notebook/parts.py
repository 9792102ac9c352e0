"""The machinery of one lab: store, policy, gateway, controller, started together and closed together."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightning_lab.controller import Controller, Limits, Sandbox
from lightning_lab.gateway import Gateway
from lightning_lab.gateway.process import GatewayProcess
from lightning_lab.notebook.controllers import Controllers
from lightning_lab.notebook.scratch import scratch_folder
from lightning_lab.policy.base import Policy
from lightning_lab.records import Sampling
from lightning_lab.store import RunFolder, Store
from lightning_lab.store.errors import MissingManifestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the training loop needs of a lab. ``close`` is idempotent and leaves no thread, process or port."""

    policy: Policy
    store: Store
    gateway: Gateway | GatewayProcess
    controller: Controllers
    folder: RunFolder
    _cleanup: ExitStack

    def close(self) -> None:
        self._cleanup.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """How a lab runs agents on this machine."""

    concurrency: int | Literal["auto"] | None = None
    limits: Limits = field(default_factory=Limits)
    sandbox: Sandbox | None = None


def start_parts(
    policy: Policy,
    runs: str | Path,
    *,
    sampling: Sampling,
    agents: AgentSettings,
    settings: Mapping[str, Any],
    resume: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    outside: bool = False,
    build: Callable[[], Policy] | None = None,
) -> Parts:
    """Start everything, in the order in which it is needed. What fails closes what had started, then raises.

    The policy comes first: it is what most often cannot start, and it leaves no run folder behind then.
    ``outside``: gateway and store's writer in a process of their own, where ``build`` makes the policy if it is given.
    ``resume``: a run of another lab, whose folder and store are opened again.
    """
    stack = ExitStack()
    try:
        stack.callback(policy.close)
        policy.start()
        with ExitStack() as unused_folder:
            if resume is None:
                folder = RunFolder.create(
                    Path(runs).expanduser(), settings={**settings, "policy": policy.name}, hashes=policy.fingerprint()
                )
                unused_folder.callback(shutil.rmtree, folder.path, ignore_errors=True)
            else:
                folder = lab_folder_of(Path(runs).expanduser(), resume)
            gateway: Gateway | GatewayProcess
            if outside:
                gateway = GatewayProcess(
                    policy, folder.store_path, build=build, sampling=sampling, host=host, port=port
                )
                stack.callback(gateway.end)
                store = Store(folder.store_path, writer=gateway.writer)
            else:
                store = Store(folder.store_path)
                gateway = Gateway(policy, store, sampling=sampling, host=host, port=port)
            stack.callback(store.close)
            stack.callback(gateway.close)
            gateway.start()
            own = Controller(
                store,
                gateway,
                stack.enter_context(scratch_folder()),
                concurrency=agents.concurrency,
                limits=agents.limits,
                sandbox=agents.sandbox,
            )
            controller = Controllers(own)
            stack.callback(controller.close)
            own.start()
            unused_folder.pop_all()
    except BaseException:
        stack.close()
        raise
    return Parts(policy=policy, store=store, gateway=gateway, controller=controller, folder=folder, _cleanup=stack)


def lab_folder_of(runs: Path, run_id: str) -> RunFolder:
    """The folder of the lab in which a run was made. Raises `store.StoreError`."""
    lab_id = RunFolder.open(runs / run_id).manifest().get("lab")
    if not lab_id:
        raise MissingManifestError(
            f"{runs / run_id} does not say which lab it belongs to: give the id of a trained run."
        )
    return RunFolder.open(runs / str(lab_id))
