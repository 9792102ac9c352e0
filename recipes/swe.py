"""The grader of the software-engineering recipes: do the task's hidden tests pass on what the agent left behind?

A task is a line of JSON with ``prompt`` (the issue), ``files`` (the repository's folder, copied for each rollout),
``test_files`` (path → text: written over the agent's copies, so that it cannot weaken them) and ``test_command`` (a
list).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lightning_lab as ll
from lightning_lab.records import AgentResult, Task

TESTS_S = 600


@ll.grader(timeout_s=TESTS_S + 60)
def tests_pass(task: Task, result: AgentResult) -> float:
    """1 when the test command exits with 0. What it prints last is the verdict."""
    folder = Path(result.workdir)
    for path, text in task.fields["test_files"].items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    command = [sys.executable if part == "python" else part for part in task.fields["test_command"]]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TESTS_S)
    except subprocess.TimeoutExpired:
        print(f"the tests took more than {TESTS_S} s")
        return 0.0
    print((done.stdout + done.stderr)[-2000:])
    return float(done.returncode == 0)
