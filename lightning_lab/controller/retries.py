"""Which rollouts are tried again: only such as ended for reasons that say nothing about the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lightning_lab.records import INFRASTRUCTURE_OUTCOMES, Outcome

MAY_RETRY = frozenset(outcome.value for outcome in INFRASTRUCTURE_OUTCOMES - {Outcome.CANCELLED})
"""What the agent did itself stays as it is: trying that again would choose among its answers."""
USUAL = {"lost": 2, "evicted": 2, "boot_timeout": 1, "image_pull": 1, "oom": 1, "policy_error": 1}
"""Further attempts by outcome. Graders are asked once: what one cannot grade it can grade no better the second time."""
_LONGEST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often a rollout is tried again, and when."""

    times: Mapping[str, int] = field(default_factory=dict)
    """Further attempts by the outcome of the one that failed."""
    wait_s: float = 1.0
    """Before the second attempt; twice as long before each further one, up to a minute."""

    def delay_s(self, outcome: Outcome | None, tries: int) -> float | None:
        """Seconds until the next attempt after ``tries`` of them, the last with this outcome; None: there is none."""
        if outcome is None or tries > self.times.get(outcome.value, 0):
            return None
        return float(min(_LONGEST_S, self.wait_s * 2.0 ** (tries - 1)))


NEVER = Retries()
