"""What the panel can read of a rollout: tokens as columns, both sides of a break, weights; of a lab or a file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_lab.notebook.frames import MAX_FRAME_BYTES
from lightning_lab.notebook.reading import reading_handlers
from lightning_lab.notebook.requests import Reply, Requests
from lightning_lab.notebook.run_file import RunFile, packed
from lightning_lab.notebook.strips import sample_columns, token_roles
from lightning_lab.notebook.token_text import TokenText, decoded_by, looked_up
from lightning_lab.records import (
    Break,
    BreakCause,
    Call,
    HarnessInfo,
    Ids,
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
)  # fmt: skip
from lightning_lab.store import Store, StoreError, export_run

LETTERS = looked_up({i: bytes([i]) for i in range(256)})


def ids(text: str) -> Ids:
    return np.frombuffer(text.encode("latin-1"), np.uint8).astype(np.int32)


def call(rollout: str, ordinal: int, prompt: str, reply: str, *said: Message) -> Call:
    sampled = ids(reply)
    return Call(
        id=f"c-{rollout}-{ordinal}", rollout_id=rollout, attempt=1, ordinal=ordinal,
        request_id=f"q-{rollout}-{ordinal}",
        protocol="chat", model="any", messages=(Message(role="user", content="1+1?"), *said), tools=(),
        reply=Message(role="assistant", content=reply), prompt_ids=ids(prompt), sampled_ids=sampled,
        logprobs=np.full(len(sampled), -0.5, np.float32), versions=np.full(len(sampled), 3, np.int32),
        finish_reason="stop", asked={}, used=Sampling(), arrived_at=10.0 + ordinal, held_s=0.0,
        started_at=10.0 + ordinal, finished_at=10.5 + ordinal, delivered=True,
    )  # fmt: skip


def rollout(id: str, **more: Any) -> Rollout:
    fields: dict[str, Any] = {
        "id": id, "run_id": "run", "group_id": "g", "task": Task(id="t", prompt="1+1?"), "mode": "train",
        "harness": HarnessInfo(name="h", version="v", kind="function"), "state": RolloutState.SUCCEEDED,
        "outcome": Outcome.COMPLETED, "reward": 1.0, "created_at": 1.0, "started_at": 2.0, "finished_at": 3.0, **more,
    }  # fmt: skip
    return Rollout(**fields)


def sample(rollout: str, length: int, *spans: tuple[str, int, int]) -> Sample:
    mask = np.zeros(length, np.bool_)
    for _, start, stop in spans:
        mask[start:stop] = True
    return Sample(
        rollout_id=rollout, ids=(np.arange(length) % 250).astype(np.int32), mask=mask,
        logprobs=np.where(mask, -0.25, 0).astype(np.float32), versions=np.where(mask, 3, -1).astype(np.int32),
        segments=tuple(Segment(call_id=call, start=start, stop=stop) for call, start, stop in spans),
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A group of three: one cut in two by a break, one whole, one without a reward; and one rollout not trained on."""
    with Store(tmp_path / "store.sqlite") as store:
        settings = {"normalizer": "rollout_mean", "constant": 64.0}
        store.put_run(Run(id="run", kind="fit", state="finished", settings=settings, created_at=1.0, finished_at=9.0))
        consumed = {"step": 4, "advantage": 0.7, "weight": 0.5}
        store.put_rollout(rollout("r-cut", **consumed))
        store.put_rollout(rollout("r-whole", **{**consumed, "reward": 0.0}))
        store.put_rollout(
            rollout("r-lost", state=RolloutState.FAILED, outcome=Outcome.GRADER_ERROR, reward=None, step=4)
        )
        store.put_rollout(rollout("r-free", group_id="e", mode="eval"))
        store.put_call(call("r-cut", 0, "ask:", '{"a":1}'))
        store.put_call(call("r-cut", 1, 'ask:{"a": 1} ok?', "yes", Message(role="assistant", content='{"a": 1}')))
        store.put_call(call("r-free", 0, "ask:", "hm"))
        cut = [sample("r-cut", 11, ("c-r-cut-0", 4, 11)), sample("r-cut", 19, ("c-r-cut-1", 16, 19))]
        broken = Break(
            rollout_id="r-cut", call_id="c-r-cut-1", previous_call_id="c-r-cut-0", index=9, cause=BreakCause.TOOL_ARGS,
            before='{"a":1}', after='{"a": 1}',
        )  # fmt: skip
        store.put_samples("run", 4, [*cut, sample("r-whole", 9, ("c-w", 4, 9))], [broken])
        numbers = np.where(cut[0].mask, 0.5, np.nan).astype(np.float32)
        store.put_token_stats("run", 4, "r-cut", 0, {"ratio": numbers, "logprobs": -numbers})
        store.flush()
        yield store


def ask(store: Store, method: str, **params: Any) -> Any:
    reply = Requests(reading_handlers(lambda: store, LETTERS)).answer({"id": 1, "method": method, "params": params})
    if not reply.data["ok"]:
        return reply.data["error"]
    return reply.data["result"] if not reply.buffers else (reply.data["result"], columns(reply.data["result"], reply))


def columns(header: dict[str, Any], reply: Reply) -> dict[str, list[Any]]:
    formats = {"f64": "<f8", "f32": "<f4", "i32": "<i4"}
    read: dict[str, list[Any]] = {}
    for column in header["columns"]:
        data = reply.buffers[column["buffer"]]
        if column["type"] == "json":
            read[column["name"]] = json.loads(data)
        elif column["type"] == "code":
            read[column["name"]] = [column["values"][code] for code in data]
        else:
            read[column["name"]] = np.frombuffer(data, formats[column["type"]]).tolist()
    return read


def test_tokens_come_with_role_text_and_what_the_learner_computed(store: Store) -> None:
    header, tokens = ask(store, "tokens", id="r-cut", sample=0)
    stored = store.samples("r-cut")[0]
    assert (header["tokens"], header["segments"]) == (11, [["c-r-cut-0", 4, 11]])
    assert tokens["id"] == stored.ids.tolist()
    assert tokens["role"] == ["prompt"] * 4 + ["sampled"] * 7
    assert tokens["text"][1] == "\x01"
    assert np.isnan(tokens["logprob"][0]) and tokens["logprob"][4] == -0.25
    assert tokens["ratio"][10] == 0.5 and tokens["new_logprob"][10] == -0.5
    assert "entropy" not in tokens, "what was not computed is not sent"


def test_a_rollout_that_no_step_consumed_is_cut_as_it_would_be(store: Store) -> None:
    _, tokens = ask(store, "tokens", id="r-free", sample=0)
    assert "".join(tokens["text"]) == "ask:hm"
    detail = ask(store, "rollout", id="r-free")
    assert (detail["trained"], len(detail["samples"])) == (False, 1)
    assert ask(store, "rollout", id="r-cut")["trained"] is True


def test_the_token_that_a_spike_is_about_is_found_across_samples(store: Store) -> None:
    ratio = np.full(19, np.nan, np.float32)
    ratio[16:] = (1.0, 8.0, 0.1)
    store.put_token_stats("run", 4, "r-cut", 1, {"ratio": ratio, "clipped": np.float32(np.arange(19) == 18)})
    store.flush()
    there = {"sample": 1, "call": "c-r-cut-1"}
    assert ask(store, "peak", id="r-cut", by="kl") == {**there, "token": 17}, "8 − 1 − ln 8 > 0.1 − 1 − ln 0.1"
    assert ask(store, "peak", id="r-cut", by="ratio") == {**there, "token": 18}, "ten times less against eight more"
    assert ask(store, "peak", id="r-cut", by="clip") == {**there, "token": 18}
    assert ask(store, "peak", id="r-whole", by="kl") == {}, "nothing was computed"
    assert "kl, ratio, clip" in ask(store, "peak", id="r-cut", by="colour")["message"]


def test_messages_stay_below_the_limit_and_together_are_the_sample() -> None:
    length = 30_000
    long = sample("r", length, ("c", 100, length))
    wide = TokenText(lambda id: "x" * (id % 40))
    start, seen = 0, []
    while start < length:
        reply = sample_columns([long], [], wide, index=0, start=start)
        assert len(json.dumps(reply.data)) + sum(map(len, reply.buffers)) <= MAX_FRAME_BYTES
        seen += columns(reply.data, reply)["id"]
        start += reply.data["rows"]
    assert seen == long.ids.tolist()


def test_masked_tokens_say_why() -> None:
    first, second = sample("r", 10, ("a", 2, 5), ("b", 6, 10)), sample("r", 12, ("a", 2, 5), ("c", 8, 12))
    second.mask[2:5] = False
    second.mask[9] = False
    assert token_roles([first, second], 0).tolist() == [0, 0, 2, 2, 2, 1, 2, 2, 2, 2]
    named = sample_columns([first, second], [], LETTERS, index=1)
    roles = columns(named.data, named)["role"]
    assert roles[2:5] == ["shared"] * 3 and roles[9] == "no_logprob" and roles[10] == "sampled"


def test_both_sides_of_a_break_are_the_recorded_ids(store: Store) -> None:
    sides = ask(store, "sides", **{"id": "r-cut", "break": 0})
    at = sides["index"] - sides["start"]
    assert (
        "".join(sides["sample"]["texts"]) == 'ask:{"a":1}' and "".join(sides["prompt"]["texts"]) == 'ask:{"a": 1} ok?'
    )
    assert sides["sample"]["ids"][:at] == sides["prompt"]["ids"][:at]
    assert sides["sample"]["texts"][at] == "1" and sides["prompt"]["texts"][at] == " "
    assert "arguments of a tool call" in sides["sentence"] and "text itself changed" in sides["stitching"]
    assert "no break 5" in ask(store, "sides", **{"id": "r-cut", "break": 5})["message"]


def test_weights_under_every_normaliser_and_one_sentence(store: Store) -> None:
    told = ask(store, "weights", id="r-cut")
    cut, whole, lost = told["rollouts"]
    assert [r["id"] for r in told["rollouts"]] == ["r-cut", "r-whole", "r-lost"]
    # Trained tokens: 7 + 3 in two samples against 5 in one.
    assert cut["ghosts"] == pytest.approx(
        {"rollout_mean": 1 / 2, "token_mean": 10 / 15, "sample_mean": 2 / 3, "constant": 2 / 3}
    )
    assert sum(r["ghosts"]["sample_mean"] for r in (cut, whole)) == pytest.approx(1.0)
    assert lost["ghosts"] == {} and lost["reward"] is None
    assert told["sentence"] == "Cut into 2 samples by tool_args; it would weigh 1.3× under sample_mean."
    assert ask(store, "weights", id="r-lost")["sentence"].startswith("No reward (grader_error)")
    assert "Eval rollouts are not trained on" in ask(store, "weights", id="r-free")["sentence"]


def test_the_timeline_has_every_call_and_when_the_run_was_updating(store: Store) -> None:
    metrics = {"seconds_collect": 3.0}
    step = Step(run_id="run", index=4, version=5, rollout_ids=(), metrics=metrics, started_at=2.0, finished_at=9.0)
    store.put_step(step).result()
    header, calls = ask(store, "timeline", run="run", rollouts=["r-free", "r-cut", "r-none"])
    assert calls["rollout"] == [0, 1, 1]
    stored = [call for id in ("r-free", "r-cut") for call in store.calls(id)]
    assert calls["arrived"] == [call.arrived_at for call in stored]
    assert calls["finished"] == [call.finished_at for call in stored]
    assert header["updates"] == [[4, 5.0, 9.0]]
    assert "list of rollouts" in ask(store, "timeline", run="run", rollouts="r-cut")["message"]


@pytest.mark.parametrize("method", ["rollout", "tokens", "sides", "weights"])
def test_unknown_rollouts_are_refused(store: Store, method: str) -> None:
    assert "no rollout 'r-none'" in ask(store, method, id="r-none")["message"]


@pytest.mark.parametrize("place", [None, -1, 2, "0", 1.5])
def test_samples_that_are_not_there_are_refused(store: Store, place: Any) -> None:
    assert "the rollout has 2" in ask(store, "tokens", id="r-cut", sample=place)["message"]


def test_single_tokens_keep_the_space_that_decoders_drop_at_the_start() -> None:
    words = {1: "hello", 2: "world"}
    like_sentencepiece = decoded_by(lambda: lambda ids: " ".join(words[int(i)] for i in ids))
    assert like_sentencepiece.text(2) == " world"
    assert like_sentencepiece.text(-1) == "" and like_sentencepiece.text(99) == "", "an unknown id has no text"


def test_an_exported_run_gives_the_same_frames_and_answers(store: Store, tmp_path: Path) -> None:
    vocabulary = {i: bytes([i]) for i in range(128)}
    path = export_run(store, "run", tmp_path / "run.llab", manifest={"schema_version": 1}, vocabulary=vocabulary)
    file = RunFile(path)
    try:
        (frame,) = file.frames()
        assert frame.header["counters"]["total"] == 4 and frame.header["rollouts"]["rows"] == 4
        assert frame.header["lab_state"] == "closed"
        reply = file.answer({"id": 1, "method": "tokens", "params": {"id": "r-cut", "sample": 0}})
        header, tokens = ask(store, "tokens", id="r-cut", sample=0)
        assert (
            columns(reply.data["result"], reply)["id"] == tokens["id"]
            and reply.data["result"]["tokens"] == header["tokens"]
        )
        assert file.answer({"id": 2, "method": "weights", "params": {"id": "r-cut"}}).data["result"] == ask(
            store, "weights", id="r-cut"
        )
        assert not file.answer({"id": 3, "method": "action", "params": {"name": "pause"}}).data["ok"]
    finally:
        file.close()


def test_other_files_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "other.llab").write_text("not a run")
    with pytest.raises(StoreError):
        RunFile(tmp_path / "other.llab")


def test_packed_messages_carry_the_lengths_of_their_parts() -> None:
    body = packed({"a": 1}, [b"xyz", b""])
    assert struct.unpack_from("<4I", body) == (3, 7, 3, 0)
    assert body[16:] == b'{"a":1}xyz'
