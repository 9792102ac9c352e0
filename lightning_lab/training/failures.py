"""A broken agent or grader fails everywhere: say so after two groups instead of training on nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from lightning_lab.records import Rollout, RolloutState
from lightning_lab.training.collecting import Group

TAIL_LINES = 15
NO_CALL = "the agent never called the model"


class TrainingStopped(RuntimeError):  # noqa: N818 - the word that users see
    """The run stopped itself; the message says why and what to do."""


class FailureWatch:
    """Looks at the first two groups that complete; silent afterwards."""

    def __init__(self) -> None:
        self._signatures: list[str | None] = []

    def observe(self, group: Group, calls: Mapping[str, int]) -> None:
        """``calls``: model calls per rollout. Raises `TrainingStopped` when both groups failed in the same way."""
        if len(self._signatures) == 2:
            return
        self._signatures.append(_signature(group, calls))
        if len(self._signatures) == 2 and None not in self._signatures and len(set(self._signatures)) == 1:
            raise TrainingStopped(_reason(group, calls))


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
    return re.sub(r"0x[0-9a-fA-F]+|[0-9A-HJKMNP-TV-Z]{26}|\d+", "#", line)


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
