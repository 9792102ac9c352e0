"""Frames: what a front end can rebuild from any subset of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from lightning_lab.notebook.frames import MAX_FRAME_BYTES, MAX_STEP_ROWS, FrameBuilder, Snapshot, encode_rows
from lightning_lab.notebook.rows import RolloutRow, RolloutTable


def row(i: int, **changes: Any) -> RolloutRow:
    fields: dict[str, Any] = {
        "row": i, "id": f"r-{i:06d}", "group": f"g-{i // 8}", "task": f"What is {i} + {i}?", "harness": "solver",
        "mode": "train", "state": "queuing", "outcome": "", "step": None, "version": None, "reward": None,
        "advantage": None, "weight": None, "calls": 0, "tokens": 0, "created_at": 1.5e9 + i, "started_at": None,
        "finished_at": None,
    }  # fmt: skip
    return RolloutRow(**{**fields, **changes})


def snapshot(**fields: Any) -> Snapshot:
    return Snapshot(lab="lab", lab_state="open", run={"id": "run", "state": "running"}, **fields)


def read(header: Any, buffers: Any) -> list[dict[str, Any]]:
    """What a front end does with a frame, written from the wire's description."""
    header = orjson.loads(orjson.dumps(header))
    columns = {}
    for column in header["rollouts"]["columns"]:
        data = buffers[column["buffer"]]
        columns[column["name"]] = {
            "i32": lambda data, _: np.frombuffer(data, "<i4").tolist(),
            "f64": lambda data, _: [None if value != value else value for value in np.frombuffer(data, "<f8").tolist()],
            "code": lambda data, column: [column["values"][code] for code in data],
            "json": lambda data, _: orjson.loads(data),
        }[column["type"]](data, column)
    assert all(len(values) == header["rollouts"]["rows"] for values in columns.values())
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def table_of(count: int) -> RolloutTable:
    table = RolloutTable()
    for i in range(count):
        table.put(row(i))
    return table


def test_columns_carry_every_field_and_absent_numbers() -> None:
    rows = [
        row(0, state="succeeded", outcome="completed", reward=0.25, step=3, version=2, calls=2, tokens=17, weight=0.5),
        row(1, mode="eval"),
    ]
    columns, buffers = encode_rows(rows)
    first, second = read({"rollouts": {"rows": 2, "columns": columns}}, buffers)
    assert (first["state"], first["outcome"], first["reward"], first["step"]) == ("succeeded", "completed", 0.25, 3)
    assert (first["version"], first["calls"], first["tokens"], first["weight"]) == (2, 2, 17, 0.5)
    assert (second["mode"], second["outcome"], second["reward"], second["step"]) == ("eval", "", None, -1)
    assert second["id"] == "r-000001" and second["created_at"] == 1.5e9 + 1


def test_deltas_carry_only_changed_rows_and_equal_rows_are_no_change() -> None:
    table = table_of(3)
    builder = FrameBuilder(table)
    assert builder.build(snapshot(), seq=1, key=False).header["rollouts"]["rows"] == 3
    table.put(row(1))
    assert not builder.has_news(snapshot())
    table.put(row(1, state="running"))
    frame = builder.build(snapshot(), seq=2, key=False)
    assert [line["id"] for line in read(frame.header, frame.buffers)] == ["r-000001"]


def test_large_tables_are_sent_in_bounded_frames_without_loss() -> None:
    table = table_of(5_000)
    builder = FrameBuilder(table)
    seen: dict[str, Any] = {}
    while builder.has_news(snapshot()):
        frame = builder.build(snapshot(), seq=0, key=False)
        assert frame.wire_bytes() <= MAX_FRAME_BYTES
        seen.update({line["id"]: line for line in read(frame.header, frame.buffers)})
    assert len(seen) == 5_000


def test_key_frames_alone_heal_everything() -> None:
    """A page that lost all deltas is right after one cycle of key frames."""
    table = table_of(3_000)
    builder = FrameBuilder(table)
    steps = [{"index": i, "reward": 0.5} for i in range(450)]
    state = snapshot(steps=steps, counters={"total": 3_000})
    while builder.has_news(state):
        builder.build(state, seq=0, key=False)
    rows: set[str] = set()
    step_rows: set[int] = set()
    for _ in range(12):
        frame = builder.build(state, seq=0, key=True)
        assert frame.wire_bytes() <= MAX_FRAME_BYTES
        assert frame.header["counters"] == {"total": 3_000}
        assert len(frame.header["steps"]["rows"]) <= MAX_STEP_ROWS
        rows.update(line["id"] for line in read(frame.header, frame.buffers))
        first = frame.header["steps"]["from"]
        step_rows.update(range(first, first + len(frame.header["steps"]["rows"])))
    assert len(rows) == 3_000
    assert step_rows == set(range(450))


def test_new_steps_come_once_as_deltas() -> None:
    builder = FrameBuilder(RolloutTable())
    steps = [{"index": i} for i in range(3)]
    first = builder.build(snapshot(steps=steps[:2]), seq=1, key=False).header["steps"]
    second = builder.build(snapshot(steps=steps), seq=2, key=False).header["steps"]
    third = builder.build(snapshot(steps=steps), seq=3, key=False).header["steps"]
    assert (first["from"], len(first["rows"])) == (0, 2)
    assert (second["from"], second["rows"]) == (2, [{"index": 2}])
    assert third["rows"] == ()


@pytest.mark.parametrize("text", ["\ud800 alone", "nul \x00", "\u202e bidi", "<script>alert(1)</script>", "🙂" * 120])
def test_hostile_text_survives_as_text(text: str) -> None:
    columns, buffers = encode_rows([row(0, task=text)])
    (line,) = read({"rollouts": {"rows": 1, "columns": columns}}, buffers)
    assert line["task"] == text.replace("\ud800", "\ufffd")
