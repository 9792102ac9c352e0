"""Retention: purged words are in no file of the store, numbers stay, and everything else is untouched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from store_records import call, rollout, run, same, sample

from lightning_lab.records import Break, BreakCause, Message, Task
from lightning_lab.store import Store, StoreError

WORDS = "the very words"
SHARED = "words that both said"


def bytes_of(store: Store) -> bytes:
    return b"".join(path.read_bytes() for path in store.path.parent.iterdir() if path.is_file())


def said(store: Store, id_: str, words: str, *, finished_at: float, run_id: str = "run") -> None:
    task = Task(id=f"t-{id_}", prompt=words, answer=words, source="typed")
    store.put_rollout(rollout(id_, run_id=run_id, task=task))
    messages = (Message(role="system", content=SHARED), Message(role="user", content=words))
    reply = Message(role="assistant", content=words)
    ids = np.frombuffer(words.encode() * 4, np.int32)
    more = {"messages": messages, "reply": reply, "prompt_ids": ids, "sampled_ids": ids, "rollout_id": id_}
    n = len(ids)
    more |= {"logprobs": np.zeros(n, np.float32), "versions": np.zeros(n, np.int32), "request_extra": {"user": words}}
    store.put_call(call(f"c-{id_}", **more))
    ended = {"task": task, "run_id": run_id, "reward": 1.0, "finished_at": finished_at}
    store.put_rollout(rollout(id_, "succeeded", stdout=words, output=words, **ended))
    where = {"call_id": f"c-{id_}", "previous_call_id": "", "index": 0, "before": words, "after": words}
    store.put_samples(
        run_id, 0, [sample(id_, call_id=f"c-{id_}")], [Break(rollout_id=id_, cause=BreakCause.EDITED, **where)]
    )
    store.put_token_stats(run_id, 0, id_, 0, {"entropy": np.ones(6, np.float32)})
    store.put_event("call_error", run_id, id_, {"message": words, "code": "policy_error"})


def test_purged_words_are_gone_and_numbers_stay(store: Store) -> None:
    store.put_run(run("run", state="finished"))
    said(store, "r-old", WORDS, finished_at=100.0)
    said(store, "r-new", "other words!", finished_at=200.0)
    store.flush()
    before = store.calls("r-new")
    assert WORDS.encode() in bytes_of(store)
    assert store.purge(150.0) == 1
    assert WORDS.encode() not in bytes_of(store)
    old, new = store.rollouts("run")
    assert (old.reward, old.state, old.task.prompt, old.task.answer, old.task.id) == (
        1.0,
        "succeeded",
        "",
        None,
        "t-r-old",
    )
    assert (old.stdout, old.output) == ("", "")
    assert store.calls("r-old") == store.samples("r-old") == store.breaks(rollout_id="r-old") == []
    assert store.token_stats("r-old") == []
    assert store.call_totals(["r-old"])["r-old"][0] == 1
    assert store.counts("run")["calls"] == 2
    assert store.events(kind="call_error")[0].data == {"code": "policy_error"}
    assert all(same(a, b) for a, b in zip(store.calls("r-new"), before, strict=True))
    assert new.stdout == "other words!"
    assert len(store.samples("r-new")) == len(store.breaks(rollout_id="r-new")) == 1
    assert store.purge(150.0) == 0, "what is purged stays purged"
    assert [event.data["rollouts"] for event in store.events(kind="purge")] == [1, 0]


def test_writing_goes_on_after_a_purge(store: Store) -> None:
    store.put_run(run("run", state="finished"))
    said(store, "r-old", WORDS, finished_at=100.0)
    store.purge(150.0)
    said(store, "r-1", WORDS, finished_at=300.0)
    store.flush()
    [again] = store.calls("r-1")
    assert [message.content for message in again.messages] == [SHARED, WORDS]
    assert again.reply.content == WORDS
    path = store.path
    store.close()
    with Store(path) as opened:
        assert same(opened.calls("r-1")[0], again)
        assert opened.rollout("r-old").task.prompt == ""


def test_a_run_that_trains_and_rollouts_under_way_are_left_alone(store: Store) -> None:
    store.put_run(run("run"))
    said(store, "r-1", WORDS, finished_at=100.0)
    store.put_run(run("single", kind="single"))
    said(store, "r-2", "single words", finished_at=100.0, run_id="single")
    store.put_rollout(rollout("r-3", "running", run_id="single", created_at=1.0))
    assert store.purge(150.0) == 1
    assert store.calls("r-1")[0].reply.content == WORDS
    assert store.calls("r-2") == []
    assert store.rollout("r-3").task.prompt
    store.put_run(run("run", state="finished"))
    assert store.purge(150.0) == 1


def test_a_store_for_reading_cannot_be_purged(store: Store, tmp_path: Path) -> None:
    store.put_run(run("run")).result()
    with Store(store.path, read_only=True) as reading, pytest.raises(StoreError, match="opened for reading"):
        reading.purge(1.0)
