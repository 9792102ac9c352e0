"""What a lab says of itself in one line of a notebook."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    """What the lab is doing now."""

    state: str
    """``open`` or ``closed``."""
    policy: str
    version: int
    run: str | None
    phase: str
    queuing: int
    running: int
    concurrency: int
    """Agents of this machine that may run at one time."""
    in_flight: int
    """Model calls that generate now."""
    held: int
    """Model calls that wait for the learner, or for ``lab.resume()``."""
    paused: bool
