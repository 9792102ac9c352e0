"""A launch profile: how one released agent is started so that it works alone, through the lab's gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lightning_lab.harnesses.source import digest

WAIT_S = 3600
"""How long an agent is told to wait for an answer: a gateway may hold it while the model learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Plain data. ``env`` and ``home`` are as in `Harness`; ``{folder}`` is where the agent is installed."""

    name: str
    version: str
    """The one that is supported: what an agent sends, and how it is configured, changes from version to version."""
    npm: tuple[str, ...] = ()
    """npm packages, the agent first; where no version is named it is the profile's."""
    pypi: tuple[str, ...] = ()
    """PyPI packages, the agent first, likewise."""
    python: str = ""
    """The Python that the PyPI packages need, e.g. ``3.12``; empty: the lab's own will do."""
    argv: tuple[str, ...]
    """The program and its arguments; ``{prompt}`` is the task's."""
    env: Mapping[str, str] = field(default_factory=dict)
    home: Mapping[str, str] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """The agent's own package, without a version."""
        return (self.npm or self.pypi)[0]

    @property
    def source(self) -> str:
        """All of the launch as JSON, for the manifest."""
        launch = {"argv": self.argv, "env": dict(self.env), "home": dict(self.home)}
        return json.dumps({"package": self.package, "version": self.version, **launch})

    def digest(self, timeout_s: float) -> str:
        """Changes with everything that makes a launch."""
        return digest(self.source.encode(), str(timeout_s).encode())

    def argv_at(self, folder: Path) -> tuple[str, ...]:
        """The command, installed in ``folder``; ``{prompt}`` is left to the task."""
        return tuple(part.replace("{folder}", str(folder)) for part in self.argv)

    def env_at(self, folder: Path) -> dict[str, str]:
        """The variables, installed in ``folder``."""
        return {name: value.replace("{folder}", str(folder)) for name, value in self.env.items()}
