"""Who decides how to sample: the run; a harness only says when to stop."""

from __future__ import annotations

from lightning_lab.gateway.protocols.wire import Request
from lightning_lab.records import Sampling


def decide(run: Sampling, request: Request, *, room: int | None, ordinal: int) -> Sampling:
    """The parameters that a call uses.

    Temperature, top_p, top_k and seed are the run's. The seed moves with the call's ordinal, so that equal prompts of
    one rollout do not repeat one reply. ``max_tokens`` is the least of the run's, the harness's and ``room`` (tokens
    that still fit into the context; None where that is not known). Stop texts of both are kept.
    """
    limits = [limit for limit in (run.max_tokens, request.max_tokens, room) if limit is not None]
    return Sampling(
        temperature=run.temperature,
        top_p=run.top_p,
        top_k=run.top_k,
        max_tokens=min(limits, default=None),
        stop=tuple(dict.fromkeys((*run.stop, *request.stop))),
        seed=None if run.seed is None else (run.seed + ordinal) % 2**31,
    )
