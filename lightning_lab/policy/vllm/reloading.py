"""Published weights from files into a server that runs, and their name there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.vllm.replicas import Replica


async def load(replica: Replica, directory: Path) -> None:
    """Those of a model directory. Raises `PolicyError`; the server may have some of them then."""
    post = replica.connection.post
    replica.holds = None
    try:
        await post("/collective_rpc", _reload("load_published", directory), timeout_s=None)  # in `engine_side`
    except PolicyError:
        if replica.server is not None:
            raise
        await post("/collective_rpc", _reload("reload_weights", directory), timeout_s=None)
    replica.holds = directory


async def tell_version(replica: Replica, version: int) -> None:
    """The weights' version, and nothing cached of others."""
    await replica.connection.post("/update_weight_version", {"new_version": str(version)})
    await replica.connection.post("/reset_prefix_cache?reset_running_requests=true")
    replica.version = version


async def told_version(replica: Replica) -> int:
    """Of the weights that somebody else's server has; 0 where nobody named them."""
    told = str((await replica.connection.get("/weight_info")).get("weight_version"))
    return int(told) if told.isdigit() else 0


def _reload(method: str, directory: Path) -> dict[str, Any]:
    return {"method": method, "kwargs": {"weights_path": str(directory)}}
