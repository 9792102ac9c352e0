"""Whether a Job has the shape that the cluster's published schema gives it, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubernetes.aio import client

from lightning_lab.controller.kubernetes.manifests import Manifest
from lightning_lab.harnesses import HarnessError


def check_job(job: Manifest, name: str) -> None:
    """Raises `HarnessError` for a value of the wrong type, and for a field that would be dropped without a word."""
    try:
        kept = client.V1Job.from_dict(job).model_dump(by_alias=True, exclude_none=True)
    except (ValueError, TypeError) as error:  # pydantic's error is a ValueError
        raise HarnessError(f"The Job of {name} is not as Kubernetes wants it: {error}") from error
    unknown = list(_lost(job, kept, ""))
    if unknown:
        raise HarnessError(f"The Job of {name} has fields that Kubernetes does not know: {', '.join(unknown)}.")


def _lost(given: Any, kept: Any, path: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if value is not None and key not in kept:
                yield f"{path}.{key}".lstrip(".")
            else:
                yield from _lost(value, kept.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(kept, list):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from _lost(one, other, f"{path}[{index}]")
