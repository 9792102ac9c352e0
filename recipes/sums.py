"""Agent, tasks and grader of `smollm2_cpu.yaml`: small sums in words, graded by how close the last number is."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from typing import Any

import lightning_lab as ll
from lightning_lab.records import AgentResult, Task


@ll.harness(timeout_s=120)
def asker(task: Task) -> str:
    """One call, with nothing but the standard library."""
    body = {"model": "any", "messages": [{"role": "user", "content": task.prompt}], "max_tokens": 32}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


@ll.grader
def close(task: Task, result: AgentResult) -> float:
    """1 for the right number; less, the further off the last number of the reply is; 0 for a reply without one."""
    numbers = re.findall(r"\d+", str(result.output))
    return 1 / (1 + abs(int(numbers[-1][:6]) - int(task.answer))) if numbers else 0.0


def sums() -> Any:
    """81 tasks."""
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    return ll.tasks.from_rows(
        {"prompt": f"What is {a} + {b}? Answer with a number.", "answer": a + b} for a, b in pairs
    )
