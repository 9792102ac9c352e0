"""A run on disk: manifest, code, steps, written atomically."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
from pathlib import Path

import pytest
from store_records import HARNESS
from ulid import ULID

from lightning_lab.records import HarnessInfo, Sampling
from lightning_lab.store import RunFolder, StoreError
from lightning_lab.store.atomic import write_atomically
from lightning_lab.store.errors import MissingManifestError, SchemaVersionError
from lightning_lab.store.provenance import git_state

GRADER = HarnessInfo(
    name="../../exact <match>", version="9f", kind="function", source="def exact(task, result): ...\ud800"
)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    argv = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "agent.py").write_text("x = 1\n")
    git(folder, "add", "agent.py")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_the_manifest_says_what_ran(tmp_path: Path, repository: Path) -> None:
    (repository / "agent.py").write_text("x = 2\n")
    (repository / "new.py").touch()
    hashes = {"dataset": "d", "model": "m", "tokenizer": "t", "template": "c"}
    folder = RunFolder.create(
        tmp_path / "runs",
        settings={"steps": 3, "sampling": Sampling()},
        harness=HARNESS,
        grader=GRADER,
        seeds={"run": 7},
        hashes=hashes,
        repository=repository,
    )
    manifest = json.loads((folder.path / "manifest.json").read_bytes())
    assert manifest == folder.manifest() == RunFolder.open(folder.path).manifest()
    assert manifest["schema_version"] == 1
    assert manifest["run_id"] == folder.path.name == str(ULID.from_str(folder.path.name))
    assert manifest["hashes"] == hashes and manifest["seeds"] == {"run": 7}
    assert manifest["settings"]["steps"] == 3 and manifest["settings"]["sampling"]["temperature"] == 1.0
    assert any(line.startswith("numpy==") for line in manifest["packages"])
    assert manifest["git"]["commit"] == git(repository, "rev-parse", "HEAD")
    assert "+x = 2" in manifest["git"]["diff"] and not manifest["git"]["diff_truncated"]
    assert manifest["git"]["untracked"] == ["new.py"]
    assert manifest["hardware"]["cores"] >= 1 and manifest["hardware"]["memory_bytes"] > 2**20


def test_code_is_kept_under_harmless_names(tmp_path: Path, repository: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", settings={}, harness=HARNESS, grader=GRADER, repository=repository)
    for role, program in (("harness", HARNESS), ("grader", GRADER)):
        described = folder.manifest()[role]
        file = folder.path / described["file"]
        assert file.parent == folder.code
        assert described["source"] == program.source == file.read_bytes().decode("utf-8", "surrogatepass")
        assert described["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    folder.keep_code("harness", HarnessInfo(name="solver", version="later", kind="function", source="new"))
    assert len(list(folder.code.iterdir())) == 3


def test_a_step_is_kept_and_replaced(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, settings={}, repository=tmp_path)
    rows = [{"rollout_id": "r-1", "sample_index": 0, "weight": 0.5}, {"rollout_id": "r-2", "sample_index": 0}]
    folder.record_step(37, rows[:1])
    path = folder.record_step(37, rows, micro_batches=[[1], [0]])
    assert path.name == "000037.json"
    assert folder.step(37) == {"schema_version": 1, "step": 37, "rows": rows, "micro_batches": [[1], [0]]}
    with pytest.raises(StoreError, match="Step 38"):
        folder.step(38)


def test_manifest_changes_from_many_threads(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, settings={}, repository=tmp_path)
    writers = [threading.Thread(target=folder.write_manifest, kwargs={f"key{i}": i}) for i in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {f"key{i}": i for i in range(8)}.items() <= folder.manifest().items()
    assert folder.manifest()["settings"] == {}


def test_no_repository(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    assert git_state(tmp_path / "missing") is None


def test_a_large_diff_is_cut(repository: Path) -> None:
    (repository / "agent.py").write_text("line\n" * 200_000)
    state = git_state(repository)
    assert state is not None and state["diff_truncated"] and len(state["diff"]) == 256 * 1024


def test_named_errors(tmp_path: Path) -> None:
    with pytest.raises(MissingManifestError):
        RunFolder.open(tmp_path)
    folder = RunFolder.create(tmp_path, settings={}, run_id="fixed", repository=tmp_path)
    with pytest.raises(StoreError, match="exists"):
        RunFolder.create(tmp_path, settings={}, run_id="fixed", repository=tmp_path)
    folder.write_manifest(schema_version=99)
    with pytest.raises(SchemaVersionError, match="99"):
        RunFolder.open(folder.path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Choose another"):
        RunFolder.create(tmp_path / "file", settings={}, repository=tmp_path)


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
