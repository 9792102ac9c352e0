"""An agent and a grader for runs whose learner is verl."""

from __future__ import annotations

from typing import Any

import lightning_lab as ll


@ll.harness(preload=["openai"])
def asker(task: Any) -> str:
    from openai import OpenAI

    messages = [{"role": "user", "content": task.prompt}]
    reply = OpenAI().chat.completions.create(model="policy", messages=messages)
    return reply.choices[0].message.content or ""


@ll.grader
def numerate(task: Any, result: Any) -> float:
    """Graded, so that a group of four surely differs: digits, less a little for length and for each other letter."""
    said = result.output
    return sum(letter.isdigit() for letter in said) - 0.01 * len(said) - 0.001 * sum(map(ord, said)) / 128
