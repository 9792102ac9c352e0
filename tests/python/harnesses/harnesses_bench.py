"""Real agents through the real controller, gateway and store; only the model is scripted, token by token."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lightning_lab.controller import Controller
from lightning_lab.gateway import Gateway, Patience
from lightning_lab.harnesses import Harness
from lightning_lab.policy.base import Beginning, Chunk, Rendered
from lightning_lab.records import Call, Ids, Message, Rollout, RolloutState, Run, Sampling, Task
from lightning_lab.samples import SampleSet, build_samples
from lightning_lab.store import Store
from lightning_lab.tasks import Grader
from lightning_lab.tokens import ChatCodec, tokenizer_directory

TURN = "<|im_start|>assistant\n"
Script = Callable[[str], str]
"""Prompt text → reply."""
PIECES = 6
TOLD = Patience(tell_s=0.02)
"""Every reply comes in pieces, and streams tell them as they come."""


@cache
def codec() -> ChatCodec:
    """Qwen3's tokenizer and template: the one of the five that knows tools and reasoning."""
    return ChatCodec(tokenizer_directory("qwen3"))


def sampled(text: str) -> Ids:
    """Ids that spell ``text`` otherwise than the tokenizer would, as a model does now and then, and the end of a turn.

    Rendered again they never come out the same: only stitching keeps them.
    """
    parts = [codec().encode(text[at : at + 3]) for at in range(0, len(text), 3)]
    return np.concatenate([*parts, codec().encode("<|im_end|>")])


@dataclass
class TokenPolicy:
    """A `Policy` that says what a script says."""

    script: Script
    name: str = "scripted"
    can_learn: bool = False
    version: int = 7
    context_length: int = 200_000
    generating: list[str] = field(default_factory=list)
    """The prompts that were generated from, as text, in order."""

    def start(self) -> None: ...

    def close(self) -> None: ...

    def fingerprint(self) -> Mapping[str, str]:
        return {}

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        return Rendered(ids=codec().render(messages, tools))

    async def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        text = self.decode(prompt)
        self.generating.append(text)
        ids = sampled(self.script(text))
        parts = np.array_split(ids, PIECES)
        for at, part in enumerate(parts):
            yield Chunk(
                ids=part,
                logprobs=np.full(len(part), -0.25, np.float32),
                versions=np.full(len(part), self.version, np.int32),
                finish_reason="stop" if at == len(parts) - 1 else None,
            )
            await asyncio.sleep(TOLD.tell_s)

    def parse(self, ids: Ids, tools: Sequence[Mapping[str, Any]] = ()) -> Message:
        return codec().parse(ids)

    def beginning(self) -> Beginning:
        return codec().beginning()

    def decode(self, ids: Ids) -> str:
        return codec().decode(ids)


def turns(prompt: str) -> int:
    """How many replies a prompt contains."""
    return prompt.count(TURN) - 1


class HarnessBench:
    """One gateway, one controller, one store."""

    def __init__(self, root: Path, script: Script, *, patience: Patience = TOLD) -> None:
        self.policy = TokenPolicy(script)
        self.store = Store(root / "store.sqlite")
        self.store.put_run(Run(id="run", kind="single", state="running", settings={}, created_at=time.time())).result(9)
        self.gateway = Gateway(self.policy, self.store, patience=patience)
        self.gateway.start()
        self.controller = Controller(self.store, self.gateway, root / "work", concurrency=16)
        self.controller.start()
        self._ended: dict[str, Rollout] = {}

    def begin(self, harness: Harness, task: Task, grader: Grader | None = None, *, name: str = "r-1") -> Any:
        """Queue a rollout; a future of its terminal record."""
        rollout = Rollout(
            id=name,
            run_id="run",
            group_id="g",
            task=task,
            harness=harness.info,
            mode="single",
            state=RolloutState.QUEUING,
        )
        return self.controller.submit(rollout, harness, grader)

    def run(self, harness: Harness, task: Task, grader: Grader | None = None, *, name: str = "r-1") -> Rollout:
        return self.begin(harness, task, grader, name=name).result(110)

    def calls(self, name: str = "r-1") -> list[Call]:
        self.store.flush()
        return self.store.calls(name)

    def samples(self, name: str = "r-1") -> SampleSet:
        return build_samples(self.calls(name), self.policy.decode)

    def close(self) -> None:
        self.controller.close()
        self.gateway.close()
        self.store.close()


def tool_call(name: str, **arguments: Any) -> str:
    """What Qwen3 says to call a tool, with two spaces where a client that writes JSON anew has one or none."""
    said = json.dumps(arguments, separators=(",  ", ":  "))
    return f'<tool_call>\n{{"name": "{name}", "arguments": {said}}}\n</tool_call>'


def tools_of(prompt: str) -> list[str]:
    """Names of the tools that a prompt offers."""
    return re.findall(r'"function": \{"name": "([^"]+)"', prompt)
