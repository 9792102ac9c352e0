"""Exported runs: one file, that run only, readable anywhere, refused by name when it is something else."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
from store_records import call, rollout, run, same, sample, turns

from lightning_lab.records import Break, BreakCause, Ids, Step
from lightning_lab.store import RunFolder, Store, StoreError, export_run, open_run
from lightning_lab.store.errors import (
    MissingManifestError,
    NotARunError,
    ReadOnlyError,
    SchemaVersionError,
    UnknownIdError,
)


@pytest.fixture
def full(store: Store) -> Store:
    """Two runs that share task, harness and messages, with everything that a run can have."""
    for name in ("a", "b"):
        store.put_run(run(name))
        id_ = f"r-{name}"
        store.put_rollout(rollout(id_, run_id=name))
        for item in turns(6, id_, seed=ord(name)):
            store.put_call(item)
        store.put_rollout(rollout(id_, "succeeded", run_id=name, reward=1.0, stdout="said \ud800"))
        where = {"call_id": "c-2", "previous_call_id": "c-1", "index": 1, "before": "x", "after": "y"}
        store.put_samples(name, 0, [sample(id_)], [Break(rollout_id=id_, cause=BreakCause.EDITED, **where)])
        store.put_token_stats(name, 0, id_, 0, {"entropy": np.ones(6, np.float32)})
        times = {"started_at": 1.0, "finished_at": 2.0}
        store.put_step(Step(run_id=name, index=0, version=1, rollout_ids=(id_,), metrics={"loss": 0.5}, **times))
    store.put_call(call("c-extra", rollout_id="r-a", ordinal=6, messages=turns(1, seed=1)[0].messages))
    store.flush()
    return store


def assert_same_run(left: Store, right: Store, name: str) -> None:
    id_ = f"r-{name}"
    for read in (Store.counts, Store.steps, Store.run):
        assert read(left, name) == read(right, name)  # type: ignore[operator]
    assert left.rollouts(name) == right.rollouts(name) != []
    assert left.events(run_id=name) == right.events(run_id=name) != []
    assert left.breaks(run_id=name) == right.breaks(run_id=name) != []
    assert left.call_totals([id_]) == right.call_totals([id_])
    assert all(same(a, b) for a, b in zip(left.calls(id_), right.calls(id_), strict=True))
    assert all(same(a, b) for a, b in zip(left.samples(id_), right.samples(id_), strict=True))
    stats = zip(left.token_stats(id_), right.token_stats(id_), strict=True)
    assert all(a["entropy"].tobytes() == b["entropy"].tobytes() for a, b in stats)


def test_everything_of_that_run_and_nothing_else(full: Store, tmp_path: Path) -> None:
    path = export_run(full, "a", tmp_path / "a.llab", manifest={"seeds": {"run": 1}})
    with open_run(path) as opened:
        assert_same_run(full, opened, "a")
        assert opened.manifest() == {"seeds": {"run": 1}, "schema_version": 1, "run_id": "a"}
        assert [found.id for found in opened.runs()] == ["a"]
        assert opened.rollouts("b") == opened.events(run_id="b") == opened.calls("r-b") == []
        with pytest.raises(ReadOnlyError):
            opened.put_run(run()).result()
    only_b = turns(6, "r-b", seed=ord("b"))[-1].reply.content
    assert only_b.encode() not in path.read_bytes()
    assert list(tmp_path.glob(".a.llab*")) == []


def test_an_export_of_an_export(full: Store, tmp_path: Path) -> None:
    words = {id_: b"w%d" % id_ for id_ in range(200_000)}
    with open_run(export_run(full, "b", tmp_path / "1.llab", vocabulary=words)) as first:
        again = export_run(first, "b", tmp_path / "2.llab", manifest=first.manifest(), vocabulary=first.vocabulary())
        with open_run(again) as second:
            assert_same_run(full, second, "b")
            assert first.vocabulary() == second.vocabulary()


def test_the_vocabulary_covers_the_ids_of_the_run(full: Store, tmp_path: Path) -> None:
    words = {id_: bytes([id_ % 256, 255]) for id_ in range(150_000)}
    with open_run(export_run(full, "a", tmp_path / "a.llab", vocabulary=words)) as opened:
        occurring = {int(id_) for item in opened.calls("r-a") for id_ in (*item.prompt_ids, *item.sampled_ids)}
        occurring |= {int(id_) for id_ in opened.samples("r-a")[0].ids}
        assert opened.vocabulary() == {id_: words[id_] for id_ in occurring}
    with open_run(export_run(full, "a", tmp_path / "none.llab")) as opened:
        assert opened.vocabulary() == {}


def test_without_a_vocabulary_the_decoder_spells_the_ids_of_the_run(full: Store, tmp_path: Path) -> None:
    def decode(ids: Ids) -> str:
        return " ".join(f"w{id_}" for id_ in ids.tolist())

    with open_run(export_run(full, "a", tmp_path / "a.llab", decode=decode)) as opened:
        occurring = {int(id_) for item in opened.calls("r-a") for id_ in (*item.prompt_ids, *item.sampled_ids)}
        words = opened.vocabulary()
        assert occurring <= set(words) and min(words) >= 0
        assert all(word == f" w{id_}".encode() for id_, word in words.items()), "as it stands within a text"


def test_the_manifest_of_the_run_folder_travels(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, settings={"n": 8}, seeds={"run": 3}, repository=tmp_path)
    with Store(folder.store_path) as store:
        store.put_run(run(folder.run_id)).result()
        path = export_run(store, folder.run_id, tmp_path / "run.llab")
    with open_run(path) as opened:
        assert opened.manifest() == folder.manifest()


def test_nothing_appears_beside_it(full: Store, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = export_run(full, "a", home / "a b?#%.llab")
    path.chmod(0o444)
    home.chmod(0o555)
    try:
        with open_run(path) as opened:
            threads = [threading.Thread(target=opened.calls, args=("r-a",)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert opened.counts("a")["calls"] == 7
            assert list(home.iterdir()) == [path]
    finally:
        home.chmod(0o755)


def test_a_closed_store_opens_from_read_only_media(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shared-memory file can be made there (for root, who may write anywhere, access says so on such media only)."""
    full.close()
    monkeypatch.setattr("lightning_lab.store.schema.os.access", lambda path, mode: False)
    with Store(full.path, read_only=True) as opened:
        assert opened.counts("a")["total"] == 1
        assert not Path(f"{full.path}-wal").exists()


def test_exporting_while_the_lab_writes(full: Store, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        ordinal = 100
        while not stop.is_set():
            full.put_call(call(f"c-{ordinal}", rollout_id="r-a", ordinal=ordinal)).result()
            ordinal += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for i in range(5):
            with open_run(export_run(full, "a", tmp_path / f"{i}.llab")) as opened:
                assert opened.counts("a")["calls"] == len(opened.calls("r-a")) == len(opened.events(kind="call"))
    finally:
        stop.set()
        writing.join()


def test_failures_leave_the_old_file(full: Store, tmp_path: Path) -> None:
    target = tmp_path / "a.llab"
    target.write_bytes(b"old")
    with pytest.raises(UnknownIdError):
        export_run(full, "nowhere", target)
    with pytest.raises(StoreError):
        export_run(full, "a", target, manifest={"x": object()})
    assert target.read_bytes() == b"old"
    with pytest.raises(StoreError, match="Check the folder"):
        export_run(full, "a", tmp_path / "missing" / "a.llab")
    assert not list(tmp_path.glob(".a.llab*"))
    export_run(full, "a", target)
    open_run(target).close()


def changed(path: Path, *statements: str) -> Path:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()
    return path


def test_what_is_no_run_is_refused_by_name(full: Store, tmp_path: Path) -> None:
    exported = lambda name: export_run(full, "a", tmp_path / name)  # noqa: E731
    (tmp_path / "text.llab").write_text("<script>alert(1)</script>" * 100)
    (tmp_path / "empty.llab").touch()
    (tmp_path / "short.llab").write_bytes(exported("x").read_bytes()[:90])
    refused = {
        tmp_path / "text.llab": NotARunError,
        tmp_path / "empty.llab": NotARunError,
        tmp_path / "short.llab": NotARunError,
        changed(tmp_path / "foreign.llab", "CREATE TABLE t (x)"): NotARunError,
        changed(exported("view"), "CREATE VIEW v AS SELECT 1"): NotARunError,
        changed(exported("version"), "PRAGMA user_version=99"): SchemaVersionError,
        changed(exported("manifest"), "DELETE FROM manifest"): MissingManifestError,
        changed(exported("table"), "DROP TABLE manifest"): StoreError,
        full.path: MissingManifestError,
        tmp_path: StoreError,
        tmp_path / "nowhere.llab": StoreError,
    }
    for path, error in refused.items():
        with pytest.raises(error, match=path.name):
            open_run(path)
    half = tmp_path / "half.llab"
    whole = exported("x").read_bytes()
    half.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError), open_run(half) as opened:
        opened.calls("r-a")


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE calls SET base = 999 WHERE base IS NOT NULL",
        "UPDATE calls SET body = '{}'",
        "UPDATE call_tokens SET sampled = x'010203'",
        "UPDATE call_tokens SET versions = x'00000000ffffff7f'",
        "UPDATE contents SET body = '[' WHERE kind = 'message'",
        "DELETE FROM contents",
    ],
)
def test_tampered_contents_are_a_named_error(full: Store, tmp_path: Path, tampering: str) -> None:
    path = changed(export_run(full, "a", tmp_path / "a.llab"), tampering)
    with open_run(path) as opened, pytest.raises(StoreError, match="damaged or was changed"):
        opened.calls("r-a")


def test_a_foreign_database_is_not_changed(tmp_path: Path) -> None:
    path = changed(tmp_path / "foreign.sqlite", "CREATE TABLE t (x)")
    before = path.read_bytes()
    with pytest.raises(NotARunError):
        Store(path)
    assert path.read_bytes() == before
    with pytest.raises(NotARunError):
        Store(path)  # and not "busy" with the first try
