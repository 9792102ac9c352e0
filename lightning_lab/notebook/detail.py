"""Everything about one rollout as JSON: what the Rollout page shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_lab.notebook.cuts import Cuts
from lightning_lab.notebook.differences import difference, gateway_changes, tool_name
from lightning_lab.notebook.plain import finite, json_bytes, json_value
from lightning_lab.records import SCHEMA_VERSION, Break, Call, Message, Rollout, Sample
from lightning_lab.samples import explain

_LIMITS = (20_000, 4_000, 1_000, 200, 60)
"""Characters kept of each text, tried in this order until the whole fits."""


def rollout_detail(cuts: Cuts) -> dict[str, Any]:
    """The wire's RolloutDetail."""
    ordinals = {call.id: call.ordinal for call in cuts.calls}
    detail = {
        "v": SCHEMA_VERSION,
        "rollout": rollout_fields(cuts.rollout),
        "calls": _calls(cuts.calls, ordinals),
        "samples": [_sample(sample) for sample in cuts.samples],
        "breaks": [_break(item, ordinals) for item in cuts.breaks],
        "trained": cuts.trained,
        "tampering": list(cuts.tampering),
        "attempts": list(cuts.attempts),
    }
    return {key: json_value(value) for key, value in detail.items()}


def rollout_fields(rollout: Rollout) -> dict[str, Any]:
    fields = dataclasses.asdict(rollout)
    return {**fields, "state": str(rollout.state), "outcome": str(rollout.outcome) if rollout.outcome else None}


def message_fields(message: Message) -> dict[str, Any]:
    """Its fields as JSON; images by their kind and size alone."""
    fields = dataclasses.asdict(dataclasses.replace(message, images=()))
    del fields["images"]
    labels = [_image_label(image["url"]) for image in message.images]
    shown = "\n".join([message.content, *labels] if message.content else labels)
    return {**fields, "content": shown or message.content, "tool_calls": [dict(call) for call in message.tool_calls]}


def _image_label(url: str) -> str:
    kind, inside, data = url.removeprefix("data:").partition(";base64,")
    known = inside and url.startswith("data:")
    return f"[image: {kind}, {len(data) * 3 // 4:,} bytes]" if known else "[image at an address]"


def shortened(detail: Mapping[str, Any], max_bytes: int) -> dict[str, Any]:
    """The detail with long texts cut, and as a last resort late calls left out, until it fits; says so in ``cut``."""
    if _size(detail) <= max_bytes:
        return dict(detail)
    small: dict[str, Any] = {}
    for limit in _LIMITS:
        small = {**_cut(detail, limit), "cut": f"texts after {limit:,} characters"}
        if _size(small) <= max_bytes:
            return small
    total = len(small["calls"])
    while small["calls"] and _size(small) > max_bytes:
        small["calls"] = small["calls"][: len(small["calls"]) // 2]
        small["cut"] = f"{total - len(small['calls'])} of {total} calls, and long texts"
    if _size(small) > max_bytes:
        small = {**small, "samples": [], "breaks": []}
    return small


def _calls(calls: Sequence[Call], ordinals: Mapping[str, int]) -> list[dict[str, Any]]:
    by_id = {call.id: call for call in calls}
    last_of_thread: dict[str, Call] = {}
    fields = []
    for call in calls:
        before = by_id.get(call.parent_id or "") or last_of_thread.get(call.thread)
        last_of_thread[call.thread] = call
        first_new = _first_new(before, call)
        told = {"gateway": gateway_changes(call, ordinals), "difference": difference(before, call, first_new)}
        fields.append({**_call(call, first_new), **told})
    return fields


def _call(call: Call, first_new: int) -> dict[str, Any]:
    return {
        "id": call.id,
        "ordinal": call.ordinal,
        "kind": call.kind,
        "thread": call.thread,
        "parent_id": call.parent_id,
        "protocol": call.protocol,
        "model": call.model,
        "finish_reason": call.finish_reason,
        "delivered": call.delivered,
        "messages_from": first_new,
        "messages": [message_fields(message) for message in call.messages[first_new:]],
        "tools": [tool_name(tool) for tool in call.tools],
        "reply": message_fields(call.reply),
        "prompt_tokens": len(call.prompt_ids),
        "sampled_tokens": len(call.sampled_ids),
        "versions": [int(call.versions.min()), int(call.versions.max())] if len(call.versions) else None,
        "arrived_at": finite(call.arrived_at),
        "finished_at": finite(call.finished_at),
        "held_s": finite(call.held_s),
        "duration_s": finite(call.finished_at - call.started_at),
        "error": call.error,
    }


def _first_new(before: Call | None, call: Call) -> int:
    """Index of the first message that the call before did not have; its faithfully echoed reply is not new."""
    if before is None:
        return 0
    index = 0
    for old, new in zip(before.messages, call.messages, strict=False):
        if old != new:
            return index
        index += 1
    whole = index == len(before.messages) < len(call.messages)
    return index + 1 if whole and _same_words(before.reply, call.messages[index]) else index


def _same_words(reply: Message, echo: Message) -> bool:
    def words(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
        tool_calls = [(call.get("name", ""), call.get("arguments", "")) for call in message.tool_calls]
        return message.role, message.content, tool_calls

    return words(reply) == words(echo)


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "tokens": len(sample.ids),
        "trained": int(sample.mask.sum()),
        "calls": [segment.call_id for segment in sample.segments],
        "masked": dict(sample.masked),
    }


def _break(item: Break, ordinals: Mapping[str, int]) -> dict[str, Any]:
    return {
        "call_id": item.call_id,
        "previous_call_id": item.previous_call_id,
        "index": item.index,
        "cause": str(item.cause),
        "explain": explain(item, ordinals),
        "before": item.before,
        "after": item.after,
    }


def _size(detail: Mapping[str, Any]) -> int:
    return len(json_bytes(detail))


def _cut(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]} … [{len(value) - limit:,} more characters]"
    if isinstance(value, Mapping):
        return {key: _cut(item, limit) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(item, limit) for item in value]
    return value
