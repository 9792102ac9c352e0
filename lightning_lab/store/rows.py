"""Records ↔ table rows: one pair of functions per record, no SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from lightning_lab.records import (
    Break,
    BreakCause,
    Call,
    Event,
    Floats,
    HarnessInfo,
    Mask,
    Message,
    Outcome,
    Rollout,
    RolloutState,
    Run,
    Sample,
    Sampling,
    Segment,
    Step,
    Task,
)
from lightning_lab.store import encoding as enc
from lightning_lab.store.errors import BadRecordError
from lightning_lab.store.rebuild import RebuiltCall

ROLLOUT_COLUMNS = (
    *("run_id", "group_id", "mode", "state", "attempt", "outcome", "reward", "task", "harness", "exit_code"),
    *("created_at", "started_at", "agent_started_at", "finished_at"),
)
"""What is final once the rollout is, in table order. ``step``, ``advantage`` and ``weight`` come after."""

_CALL_BODY = (
    *("request_id", "protocol", "model", "finish_reason", "arrived_at", "held_s", "started_at", "finished_at"),
    *("minted_ids", "kept_replies", "left_replies", "thread", "parent_id", "kind", "error"),
)
_CALL_VALUES = attrgetter(*_CALL_BODY)
_ROLLOUT_TEXTS = ("verdict", "output", "error", "stdout", "stderr")


def run_row(run: Run) -> tuple[Any, ...]:
    return (run.id, run.kind, run.state, run.created_at, run.finished_at, run.reason, enc.dump_json(run.settings))


def run_record(row: Sequence[Any]) -> Run:
    id_, kind, state, created_at, finished_at, reason, settings = row
    return Run(
        id=id_,
        kind=kind,
        state=state,
        settings=enc.load_json(settings),
        created_at=created_at,
        finished_at=finished_at,
        reason=reason,
    )


def rollout_row(rollout: Rollout, task: int, harness: int) -> tuple[Any, ...]:
    """Values of `ROLLOUT_COLUMNS`; ``task`` and ``harness`` are contents ids."""
    return (
        rollout.run_id,
        rollout.group_id,
        rollout.mode,
        RolloutState(rollout.state).value,
        int(rollout.attempt),
        None if rollout.outcome is None else Outcome(rollout.outcome).value,
        enc.finite(rollout.reward, "reward"),
        task,
        harness,
        None if rollout.exit_code is None else int(rollout.exit_code),
        enc.finite(rollout.created_at, "created_at"),
        enc.finite(rollout.started_at, "started_at"),
        enc.finite(rollout.agent_started_at, "agent_started_at"),
        enc.finite(rollout.finished_at, "finished_at"),
    )


def consumption(rollout: Rollout) -> tuple[Any, ...]:
    """What the trainer adds after the end: step, advantage, weight."""
    step = None if rollout.step is None else int(rollout.step)
    return (step, enc.finite(rollout.advantage, "advantage"), enc.finite(rollout.weight, "weight"))


def rollout_texts(rollout: Rollout) -> str:
    """The long texts as JSON, empty where all are empty."""
    texts = {name: text for name in _ROLLOUT_TEXTS if (text := getattr(rollout, name))}
    return enc.dump_json(texts) if texts else ""


def rollout_record(row: Mapping[str, Any], contents: Mapping[int, Any]) -> Rollout:
    texts = enc.load_json(row["body"]) if row["body"] else {}
    return Rollout(
        id=row["id"],
        run_id=row["run_id"],
        group_id=row["group_id"],
        task=contents[row["task"]],
        harness=contents[row["harness"]],
        mode=row["mode"],
        state=RolloutState(row["state"]),
        attempt=row["attempt"],
        outcome=None if row["outcome"] is None else Outcome(row["outcome"]),
        reward=row["reward"],
        exit_code=row["exit_code"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        agent_started_at=row["agent_started_at"],
        finished_at=row["finished_at"],
        step=row["step"],
        advantage=row["advantage"],
        weight=row["weight"],
        **texts,
    )


def content_body(value: Task | HarnessInfo | Message | Sequence[Any] | Mapping[str, Any]) -> str:
    """JSON of one immutable value; empty fields of a message are left out."""
    if isinstance(value, Message):
        fields = ("role", "content", "reasoning", "tool_calls", "tool_call_id", "name", "images")
        return enc.dump_json({name: item for name in fields if (item := getattr(value, name))})
    return enc.dump_json(value)


def content_record(kind: str, body: str) -> Any:
    """The inverse of `content_body`."""
    if kind == "message":
        value = enc.load_json(body)
        calls, images = tuple(value.pop("tool_calls", ())), tuple(value.pop("images", ()))
        return Message(role=value.pop("role", ""), tool_calls=calls, images=images, **value)
    value = enc.load_json(body)
    if kind == "request":
        used = value["used"]
        return {**value, "used": Sampling(**{**used, "stop": tuple(used["stop"])})}
    if kind == "task":
        return Task(**value)
    if kind == "harness":
        return HarnessInfo(**value)
    return tuple(value) if kind == "tools" else value


def request_content(call: Call) -> dict[str, Any]:
    """What was asked beside the conversation: the same for most calls of a rollout, so stored once."""
    return {"asked": call.asked, "used": call.used, "extra": call.request_extra}


def token_blobs(call: Call) -> tuple[bytes, bytes]:
    """logprobs, versions."""
    logprobs, versions = enc.as_floats(call.logprobs, "logprobs"), enc.as_ids(call.versions, "versions")
    return enc.pack_floats(logprobs), enc.pack_runs(versions)


def call_body(call: Call) -> str:
    return enc.dump_json(dict(zip(_CALL_BODY, _CALL_VALUES(call), strict=True)))


def call_record(call: RebuiltCall, contents: Mapping[int, Any]) -> Call:
    row = call.row
    body = enc.load_json(row["body"])
    request = contents[row["request"]]
    return Call(
        id=row["id"],
        rollout_id=row["rollout_id"],
        attempt=row["attempt"],
        ordinal=row["ordinal"],
        messages=tuple(map(contents.__getitem__, call.messages.tolist())),
        tools=contents[row["tools"]],
        reply=contents[row["reply"]],
        prompt_ids=call.prompt,
        sampled_ids=call.sampled,
        logprobs=enc.unpack_floats(row["logprobs"]),
        versions=enc.unpack_runs(row["versions"]),
        asked=request["asked"],
        used=request["used"],
        request_extra=request["extra"],
        delivered=bool(row["delivered"]),
        minted_ids=tuple(body.pop("minted_ids")),
        left_replies=tuple(body.pop("left_replies", ())),
        **body,
    )


def sample_row(sample: Sample) -> tuple[Any, ...]:
    """ids, mask, logprobs, versions, segments, masked."""
    ids = enc.as_ids(sample.ids, "sample.ids")
    mask: Mask = np.asarray(sample.mask, dtype=np.bool_)
    logprobs = enc.as_floats(sample.logprobs, "sample.logprobs")
    versions = enc.as_ids(sample.versions, "sample.versions")
    if not len(ids) == len(mask) == len(logprobs) == len(versions):
        raise BadRecordError(
            f"The arrays of a sample of {sample.rollout_id} have lengths {len(ids)}, {len(mask)}, {len(logprobs)}, "
            f"{len(versions)}; they must be equal."
        )
    return (
        enc.pack_ids(ids),
        enc.pack_mask(mask),
        _pack_masked(logprobs, mask),
        enc.pack_runs(versions),
        enc.dump_json([[segment.call_id, segment.start, segment.stop] for segment in sample.segments]),
        enc.dump_json(sample.masked),
    )


def sample_record(row: Sequence[Any]) -> Sample:
    rollout_id, ids, mask_blob, logprobs, versions, segments, masked = row
    mask = enc.unpack_mask(mask_blob)
    return Sample(
        rollout_id=rollout_id,
        ids=enc.unpack_ids(ids),
        mask=mask,
        logprobs=_unpack_masked(logprobs, mask),
        versions=enc.unpack_runs(versions),
        segments=tuple(Segment(call_id=call, start=start, stop=stop) for call, start, stop in enc.load_json(segments)),
        masked=enc.load_json(masked),
    )


def _pack_masked(values: Floats, mask: Mask) -> bytes:
    """Only the masked-in values if all others are exactly 0 (as they should be), else all."""
    outside = values[~mask].view(np.int32)  # bits, so that -0.0 and NaN count as something
    return enc.pack_floats(values if outside.any() else values[mask])


def _unpack_masked(blob: bytes, mask: Mask) -> Floats:
    values = enc.unpack_floats(blob)
    if len(values) == len(mask):
        return values
    full = np.zeros(len(mask), np.float32)
    full[mask] = values
    return enc.frozen(full)


def break_body(item: Break) -> str:
    names = ("call_id", "previous_call_id", "index", "before", "after")
    return enc.dump_json({name: getattr(item, name) for name in names})


def break_record(row: Sequence[Any]) -> Break:
    rollout_id, cause, body = row
    return Break(rollout_id=rollout_id, cause=BreakCause(cause), **enc.load_json(body))


def step_row(step: Step) -> tuple[Any, ...]:
    return (
        step.run_id,
        int(step.index),
        int(step.version),
        enc.finite(step.started_at, "started_at"),
        enc.finite(step.finished_at, "finished_at"),
        step.skipped,
        enc.dump_numbers(step.metrics),
        enc.dump_json(list(step.rollout_ids)),
    )


def step_record(row: Sequence[Any]) -> Step:
    run_id, index, version, started_at, finished_at, skipped, metrics, rollout_ids = row
    return Step(
        run_id=run_id,
        index=index,
        version=version,
        rollout_ids=tuple(enc.load_json(rollout_ids)),
        metrics=enc.load_numbers(metrics),
        started_at=started_at,
        finished_at=finished_at,
        skipped=skipped,
    )


def event_record(row: Sequence[Any]) -> Event:
    seq, at, kind, run_id, subject, data = row
    return Event(seq=seq, at=at, kind=kind, run_id=run_id, subject=subject, data=enc.load_json(data))
