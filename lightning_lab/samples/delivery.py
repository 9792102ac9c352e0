"""Which calls reached the agent, and which earlier calls a request shows to have seen."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_lab.records import Call


def echoed_ids(call: Call) -> frozenset[str]:
    """Ids in the request that the gateway may have minted: tool-call ids and the id of a previous response."""
    echoed = {message.tool_call_id for message in call.messages}
    echoed.update(tool_call.get("id", "") for message in call.messages for tool_call in message.tool_calls)
    echoed.add(str(call.request_extra.get("previous_response_id", "")))
    return frozenset(echoed - {""})


def delivered_calls(calls: Sequence[Call]) -> list[Call]:
    """Calls whose reply the agent got, in order of arrival.

    A reply was delivered if its last byte was written without a disconnect, or if an id that was minted for it is
    echoed by a later request. Raises ValueError when the calls are not of one attempt of one rollout.
    """
    owners = {(call.rollout_id, call.attempt) for call in calls}
    if len(owners) > 1:
        raise ValueError(
            f"The calls belong to {len(owners)} attempts or rollouts; attempts never mix. "
            "Pass the calls of one attempt: store.calls(rollout_id, attempt=...)."
        )
    ordered = sorted(calls, key=lambda call: (call.arrived_at, call.ordinal))
    undelivered = any(not call.delivered for call in ordered)
    echoed = frozenset[str]().union(*(echoed_ids(call) for call in ordered)) if undelivered else frozenset()
    return [call for call in ordered if call.delivered or not echoed.isdisjoint(call.minted_ids)]
