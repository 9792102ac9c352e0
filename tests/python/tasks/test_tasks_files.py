"""The files that a task gives its agent."""

from __future__ import annotations

import os

import pytest

import lightning_lab as ll
from lightning_lab.tasks import TaskError
from lightning_lab.tasks.files import check_files, put_files


def task(files):
    return ll.tasks.from_rows([{"prompt": "fix it", "files": files}])[0]


def test_texts_are_written_with_their_folders(tmp_path):
    given = task({"calc.py": "add = sum\n", "src/läb/deep.txt": "ü"})
    check_files(given)
    put_files(given, tmp_path)
    assert (tmp_path / "calc.py").read_text() == "add = sum\n"
    assert (tmp_path / "src/läb/deep.txt").read_text(encoding="utf-8") == "ü"


def test_a_folder_is_copied_with_links_modes_and_hidden_files(tmp_path):
    source, target = tmp_path / "repository", tmp_path / "work"
    (source / ".git").mkdir(parents=True)
    (source / ".git" / "HEAD").write_text("ref")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "outside").symlink_to("/etc")
    target.mkdir()
    given = task(str(source))
    check_files(given)
    put_files(given, target)
    assert (target / ".git" / "HEAD").read_text() == "ref"
    assert os.access(target / "run.sh", os.X_OK)
    assert (target / "outside").is_symlink()
    assert (source / "run.sh").exists()


def test_no_files_is_fine(tmp_path):
    given = ll.tasks.from_rows([{"prompt": "hi"}])[0]
    check_files(given)
    put_files(given, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a\0b"])
def test_no_file_lies_outside(path):
    with pytest.raises(TaskError, match="outside the working directory"):
        check_files(task({path: "x"}))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"x": 1}, "is text, not int"),
        (["a.py"], "here it is list. Rename the column"),
        ("/no/such/folder", "no folder on this machine"),
    ],
)
def test_what_cannot_be_put_there_is_refused_before_anything_runs(files, words):
    with pytest.raises(TaskError, match=words):
        check_files(task(files))
