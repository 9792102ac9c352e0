"""When a run stops by itself: what fails everywhere is said early, instead of training on nothing."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping

from lightning_lab.records import Outcome, Rollout, RolloutState
from lightning_lab.training.collecting import Group
from lightning_lab.training.rewards import is_infrastructure

TAIL_LINES = 15
NO_CALL = "the agent never called the model"


class TrainingStopped(RuntimeError):  # noqa: N818 - the word that users see
    """The run stopped itself; the message says why and what to do."""


class FirstGroups:
    """A broken agent or grader fails everywhere: looks at the first two groups that complete; silent afterwards."""

    def __init__(self) -> None:
        self._signatures: list[str | None] = []

    def observe(self, group: Group, calls: Mapping[str, int]) -> None:
        """``calls``: model calls per rollout. Raises `TrainingStopped` when both groups failed in the same way."""
        if len(self._signatures) == 2:
            return
        self._signatures.append(_signature(group, calls))
        if len(self._signatures) == 2 and None not in self._signatures and len(set(self._signatures)) == 1:
            raise TrainingStopped(_reason(group, calls))


class InfrastructureShare:
    """Of the last ``window`` rollouts, how many the infrastructure failed; what somebody cancelled does not count."""

    def __init__(self, limit: float, window: int) -> None:
        self._limit = limit
        self._last: deque[Rollout] = deque(maxlen=window)

    def observe(self, group: Group) -> None:
        """Raises `TrainingStopped` when the window is full and more than ``limit`` of it failed."""
        self._last.extend(rollout for rollout in group.rollouts if rollout.outcome is not Outcome.CANCELLED)
        failed = [rollout for rollout in self._last if is_infrastructure(rollout)]
        if len(self._last) < (self._last.maxlen or 0) or len(failed) <= self._limit * len(self._last):
            return
        counted = Counter(str(rollout.outcome) for rollout in failed).most_common()
        raise TrainingStopped(
            f"{len(failed)} of the last {len(self._last)} rollouts failed for reasons that say nothing about the agent "
            f"({', '.join(f'{outcome} {count}' for outcome, count in counted)}), more than infrastructure_limit="
            f"{self._limit:g} allows. Put right what fails, then go on with trainer.resume.\n\n{error_tail(failed[-1])}"
        )


def error_tail(rollout: Rollout) -> str:
    """The last lines of the agent's traceback, or the best other account of what went wrong."""
    text = rollout.error or rollout.verdict or rollout.stderr or rollout.stdout
    return "\n".join(text.strip().splitlines()[-TAIL_LINES:])


def _signature(group: Group, calls: Mapping[str, int]) -> str | None:
    """How the whole group failed, or None if any rollout did not."""
    ways = [_way(rollout, calls.get(rollout.id, 0)) for rollout in group.rollouts]
    failed = [way for way in ways if way is not None]
    return Counter(failed).most_common(1)[0][0] if failed and len(failed) == len(ways) else None


def _way(rollout: Rollout, calls: int) -> str | None:
    if rollout.state is not RolloutState.SUCCEEDED:
        return f"{rollout.outcome}: {_general(_headline(rollout))}"
    return None if calls else NO_CALL


def _headline(rollout: Rollout) -> str:
    """The line that names the error: the last one of a traceback."""
    lines = error_tail(rollout).splitlines()
    return lines[-1].strip() if lines else "no message"


def _general(line: str) -> str:
    """Addresses, numbers and ids differ between two rollouts that fail alike."""
    return re.sub(r"0x[0-9a-fA-F]+|[0-9A-HJKMNP-TV-Z]{26}|[0-9a-f]{28}|\d+", "#", line)


def _reason(group: Group, calls: Mapping[str, int]) -> str:
    rollout = group.rollouts[0]
    if rollout.state is RolloutState.SUCCEEDED:
        return (
            f"The first two groups failed in the same way: {NO_CALL}, so there is nothing to train on. Check that it "
            "reads OPENAI_BASE_URL (or ANTHROPIC_BASE_URL) from its environment."
        )
    tail = error_tail(rollout)
    sentence = f"The first two groups failed in the same way ({rollout.outcome}): {_headline(rollout)}"
    return f"{sentence}\n\n{tail}" if tail else sentence
