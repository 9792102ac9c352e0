"""Ray: the cluster, the placement group, and verl's worker group in it."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

from lightning_lab.policy.base import PolicyError, Seat
from lightning_lab.policy.verl.errors import GO_ON, ClusterError, LearnerLostError
from lightning_lab.policy.verl.settings import Setup, VerlSettings
from lightning_lab.policy.verl.worker import LearnerWorker

_OBJECT_STORE_BYTES = 256 << 20
_STARTS = 3
_OTHERS_S = 10.0
"""How long the other ranks are asked why one failed: of a rank that died, they only see a broken connection."""


def connect(settings: VerlSettings, environment: dict[str, str]) -> None:
    """Join a cluster, or start one on this machine. Raises `ClusterError`."""
    address = settings.address or os.environ.get("RAY_ADDRESS")
    how = {"runtime_env": {"env_vars": environment}, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        own = {"address": "local", "num_cpus": _cpus(settings), "include_dashboard": False}  # not one that runs here
        _start(**own, object_store_memory=_OBJECT_STORE_BYTES, **how)
        return
    try:
        ray.init(address=address, **how)
    except Exception as error:  # Ray's own says no more than Exception
        if "Version mismatch" in str(error):
            raise ClusterError(
                f"The Ray cluster at {address!r} runs other versions than the learner ({error}). Give it the "
                "interpreter that the cluster runs: ll.Learner.verl(…, python=…)."
            ) from error
        raise ClusterError(
            f"There is no Ray cluster at {address!r} ({error}). Start one (`ray start --head`), or leave address out "
            "to have one on this machine."
        ) from error


def _start(**how: Any) -> None:
    """Ray gives its own parts 15 seconds to start, which a busy machine may need more than."""
    for left in reversed(range(_STARTS)):
        try:
            ray.init(**how)
            return
        except Exception as error:  # Ray's own says no more than Exception
            ray.shutdown()
            if not left:
                raise ClusterError(f"Ray could not be started on this machine ({error}).") from error


def check_resources(settings: VerlSettings) -> None:
    """Raises `ClusterError` where the ranks can never be placed; Ray itself would wait for ever."""
    kind = "GPU" if settings.device == "cuda" else "CPU"
    each = settings.ranks // settings.nodes * (1 if kind == "GPU" else _cpus(settings) / settings.ranks)
    has = [float(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]
    if sum(amount >= each for amount in has) < settings.nodes:
        raise ClusterError(
            f"The Ray cluster has {_listed(has, kind)}, and {settings.ranks} ranks on {settings.nodes} node(s) need "
            f"{each:g} {kind}s on each. Ask for fewer ranks, or add nodes."
        )
    free = float(ray.available_resources().get(kind, 0))
    if free < each * settings.nodes:
        raise ClusterError(
            f"Only {free:g} {kind}s of the Ray cluster are free, and {settings.ranks} ranks need "
            f"{each * settings.nodes:g}. Another job holds the rest: end it, or wait for it (`ray status`)."
        )


class _Keeper:
    """Keeps a part of a bundle for a program that Ray does not start."""

    def about(self) -> tuple[str, str]:
        return socket.gethostname(), os.environ.get("CUDA_VISIBLE_DEVICES", "")


class Ranks:
    """The training workers, in a placement group that has room for inference servers on the same GPUs."""

    def __init__(self, setup: Setup) -> None:
        """Starts the processes and loads the model. Raises `LearnerLostError` or what the workers raise."""
        settings = setup.settings
        gpus = settings.device == "cuda"
        self._pool = RayResourcePool(
            [settings.ranks // settings.nodes] * settings.nodes,
            use_gpu=gpus,
            max_colocate_count=2 if settings.collocated else 1,
            name_prefix="lightning-lab",
        )
        worker = RayClassWithInitArgs(ray.remote(LearnerWorker), setup)
        try:
            self._group = RayWorkerGroup(self._pool, worker, device_name=settings.device)
        except RayError as error:
            raise LearnerLostError(
                f"The ranks of the learner could not start ({_first_line(str(error))}). {GO_ON}"
            ) from error
        self.pids = self.all("begin")
        self._data_rank: list[int] = self.all("_query_dispatch_info", "train")
        self.count = max(self._data_rank) + 1
        """Ranks that see different rows: all of them, divided by the sequence-parallel size."""

    def seats(self) -> list[Seat]:
        """What each rank's bundle keeps for inference servers, in the order of the ranks; held while the ranks live."""
        keeper = ray.remote(_Keeper)
        self._keepers = [
            keeper.options(
                num_cpus=1,
                num_gpus=0.5 if self._pool.use_gpu else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            ).remote()
            for group in self._pool.get_placement_groups()
            for index in range(group.bundle_count)
        ]
        return [Seat(*about) for about in _gathered([one.about.remote() for one in self._keepers])]

    def all(self, method: str, *arguments: Any) -> list[Any]:
        """The same on every rank → what each returned."""
        return _gathered([getattr(worker, method).remote(*arguments) for worker in self._group.workers])

    def each(self, method: str, parts: Sequence[Any], *arguments: Any) -> list[Any]:
        """``parts[r]`` on data rank r → what each data rank returned."""
        handed = [ray.put(part) for part in parts]
        workers = zip(self._group.workers, self._data_rank, strict=True)
        found = _gathered([getattr(worker, method).remote(handed[rank], *arguments) for worker, rank in workers])
        first = {rank: index for index, rank in reversed(list(enumerate(self._data_rank)))}
        return [found[first[rank]] for rank in range(self.count)]


def _gathered(refs: Sequence[Any]) -> list[Any]:
    """All results; the first failure ends the waiting. Raises `LearnerLostError` for a rank that died."""
    pending = list(refs)
    try:
        while pending:
            done, pending = ray.wait(pending, num_returns=1)
            ray.get(done)
        return list(ray.get(list(refs)))
    except RayError as error:
        raise _explained(error, refs) from error


def _explained(error: RayError, refs: Sequence[Any]) -> PolicyError:
    settled, _ = ray.wait(list(refs), num_returns=len(refs), timeout=_OTHERS_S)
    for rank, ref in enumerate(refs):
        if ref in settled and (death := _death(ref)) is not None:
            return LearnerLostError(
                f"Rank {rank} of the learner died ({_first_line(death)}). The usual reason is that its machine ran "
                "out of memory: lower token_budget, or offload (engine={'param_offload': True, 'optimizer_offload': "
                f"True}}). {GO_ON}"
            )
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, PolicyError):
        return type(cause)(str(cause).partition("\n")[0])
    # One that failed alone leaves the others waiting for it, and nobody knows which of them took the step.
    return LearnerLostError(f"A rank of the learner failed: {type(cause).__name__}: {_first_line(str(cause))}. {GO_ON}")


def _death(ref: Any) -> str | None:
    """How the rank died that was to answer; None where it lives."""
    try:
        ray.get(ref)
    except (OutOfMemoryError, RayActorError) as error:
        return str(error)
    except RayError:
        return None
    return None


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it said nothing")


def _cpus(settings: VerlSettings) -> int:
    """Of the bundles: one per rank, and one for the server that shares its place."""
    return settings.ranks * (2 if settings.collocated else 1)


def _listed(amounts: Sequence[float], kind: str) -> str:
    return " + ".join(f"{amount:g}" for amount in amounts) + f" {kind}s on its nodes" if amounts else "no nodes"
