"""Record `agents.llab`: released agents at work, through the real controller, gateway, store and export.

    python tests/data/record_agents.py      # needs `lightning-lab harnesses install` and `lightning-lab tokenizers`

Only the model is scripted, token by token, and the learner's numbers are made up. Among the rollouts: Claude Code and
OpenCode send a helper, OpenCode asks for a title, Codex summarises, and one of openai-agents meets an engine that is
not ready. Texts of the agents' makers (system prompts, descriptions of tools) are replaced before the gateway reads
them, so that the ids that were recorded are those of what is stored.
"""

from __future__ import annotations

import hashlib
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "python" / "harnesses")]
from harnesses_bench import TokenPolicy, codec, sampled, tool_call, tools_of, turns  # noqa: E402
from harnesses_coder import CHECK, DONE, FIX, fixed, shell, solve, task  # noqa: E402
from panel_run import learner_numbers  # noqa: E402

from lightning_lab.controller import Controller  # noqa: E402
from lightning_lab.gateway import Gateway  # noqa: E402
from lightning_lab.gateway.capture import Capture  # noqa: E402
from lightning_lab.harnesses import Harness  # noqa: E402
from lightning_lab.notebook.token_text import decoded_by  # noqa: E402
from lightning_lab.policy.base import Chunk, PolicyError  # noqa: E402
from lightning_lab.records import Ids, Rollout, RolloutState, Run, Sampling, Step  # noqa: E402
from lightning_lab.samples import build_samples  # noqa: E402
from lightning_lab.store import Store, export_run  # noqa: E402
from lightning_lab.training.batch import build_batch  # noqa: E402
from lightning_lab.training.collecting import Group  # noqa: E402
from lightning_lab.training.config import TrainConfig  # noqa: E402

RUN_ID = "01M8RECRDED000000000AGENTS"
STEPS = (("mini-swe-agent", "claude-code", "codex"), ("opencode", "openai-agents", "langchain"))
"""The agents whose groups a step consumes."""
N = 3
LONGEST = 300
"""Characters of a text by an agent's maker that are kept."""
KEPT = 1_500
"""Characters that are kept of what an agent printed."""
ERRAND = "HELPER: read calc.py and say what add() does."
SUMMARY = "SUMMARY: add() in calc.py subtracts; sed will do."
NOT_READY = ("r-openai-agents-2",)
"""Rollouts whose first call fails: the agent gives up, and the rollout does not count."""
WRONG = "sed -i 's/a - b/b + b/' calc.py"


def shortened(raw: bytes) -> bytes:
    """A request in which long texts that neither the task, nor the model, nor a tool said are replaced."""
    body = orjson.loads(raw)
    return orjson.dumps({name: _short(value, name) for name, value in body.items()})


def _short(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return _placeholder(value) if name in ("system", "instructions", "text", "content", "description") else value
    if isinstance(value, list):
        return [_short(item, name) for item in value]
    if not isinstance(value, dict) or _said_here(value):
        return value
    return {key: _short(item, key) for key, item in value.items()}


def _said_here(value: Mapping[str, Any]) -> bool:
    kinds = ("function_call_output", "custom_tool_call_output", "tool_result")
    return value.get("role") in ("assistant", "tool") or value.get("type") in kinds


def _placeholder(text: str) -> str:
    if len(text) <= LONGEST or "Task for" in text or "HELPER" in text or SUMMARY in text:
        return text
    words = next((words for words in ("CONTEXT CHECKPOINT COMPACTION",) if words in text), "")
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{words} [{len(text):,} characters by the agent's maker, sha256 {digest}…]".strip()


class Scripted(TokenPolicy):
    """Says what solves the task; the second rollout of most groups gets it wrong."""

    def __init__(self) -> None:
        super().__init__(script=lambda prompt: "")
        self.refused: set[str] = set()

    async def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        if rollout_id in NOT_READY and rollout_id not in self.refused:
            self.refused.add(rollout_id)
            raise PolicyError("The engine was not ready.")
        ids = sampled(says(self.decode(prompt), rollout_id))
        chance = np.random.default_rng(len(prompt))
        for part, reason in ((ids[:5], None), (ids[5:], "stop")):
            yield Chunk(
                ids=part,
                logprobs=-chance.exponential(0.3, len(part)).astype(np.float32),
                versions=np.full(len(part), self.version, np.int32),
                finish_reason=reason,
            )


def says(prompt: str, rollout_id: str) -> str:
    """The next reply."""
    agent, wrong = rollout_id[2:].rsplit("-", 1)[0], rollout_id[-1] == "1" and "langchain" not in rollout_id
    reply = _sends_a_helper(agent, prompt) if agent in ("claude-code", "opencode") else ""
    reply = reply or (_summarises(prompt) if agent == "codex" else "") or solve(prompt)
    return reply.replace(FIX, WRONG).replace("a + b", "b + b") if wrong else reply


def _sends_a_helper(agent: str, prompt: str) -> str:
    if not tools_of(prompt):
        return "Fix add"
    if "Task for" not in prompt:
        return [shell(agent, "cat calc.py"), "It subtracts."][turns(prompt)]
    tool, kind = {"claude-code": ("Agent", "general-purpose"), "opencode": ("task", "general")}[agent]
    send = tool_call(tool, description="look", prompt=ERRAND, subagent_type=kind)
    return [send, shell(agent, FIX), shell(agent, CHECK), DONE][min(turns(prompt), 3)]


def _summarises(prompt: str) -> str:
    if "CONTEXT CHECKPOINT COMPACTION" in prompt:
        return SUMMARY
    moves = [shell("codex", FIX), DONE] if SUMMARY in prompt else [shell("codex", "cat calc.py; seq 1 400")]
    return moves[min(turns(prompt), len(moves) - 1)]


def profile(name: str) -> Harness:
    harness = Harness.profile(name)
    if name == "codex":
        limit = "model_auto_compact_token_limit = 2600\n"
        return replace(harness, home={path: limit + text for path, text in harness.home.items()})
    if name == "opencode":
        return replace(harness, argv=tuple(part for part in harness.argv if part not in ("--title", "task")))
    return harness


def tidy(path: Path) -> None:
    """Without long outputs, and without the home of whoever recorded it."""
    with sqlite3.connect(path) as file:
        for row, body in file.execute("SELECT rollout, body FROM rollout_texts").fetchall():
            texts = {name: _tail(text.replace(str(Path.home()), "~")) for name, text in orjson.loads(body).items()}
            file.execute("UPDATE rollout_texts SET body = ? WHERE rollout = ?", (orjson.dumps(texts).decode(), row))
    file.execute("VACUUM")
    file.close()


def _tail(text: str) -> str:
    return text if len(text) <= KEPT else f"… {text[-KEPT:]}"


class Recorder:
    def __init__(self, folder: Path) -> None:
        serve = Capture.serve
        Capture.serve = lambda self, asked, raw: serve(self, asked, shortened(raw))  # type: ignore[method-assign]
        self.policy = Scripted()
        self.store = Store(folder / "store.sqlite")
        self.gateway = Gateway(self.policy, self.store, sampling=Sampling(max_tokens=2048))
        self.gateway.start()
        self.controller = Controller(self.store, self.gateway, folder / "work", concurrency=4)
        self.controller.start()
        self.config = TrainConfig(steps=len(STEPS), n=N, groups=3, learning_rate=3e-5, seed=0)

    def record(self) -> None:
        settings = {**self.config.settings(), "policy": "scripted", "harness": "six released agents", "grader": "fixed"}
        run = Run(id=RUN_ID, kind="fit", state="running", settings=settings, created_at=time.time())
        self.store.put_run(run)
        for step, agents in enumerate(STEPS):
            self.policy.version = step
            self._step(step, [self._group(name) for name in agents])
        self.store.put_run(replace(run, state="finished", finished_at=time.time()))
        self.store.flush()

    def _group(self, name: str) -> Group:
        harness = profile(name)
        queued = [
            Rollout(
                id=f"r-{name}-{place}", run_id=RUN_ID, group_id=f"g-{name}", task=task(name), harness=harness.info,
                mode="train", state=RolloutState.QUEUING, created_at=time.time(),
            )
            for place in range(N)
        ]  # fmt: skip
        ended = [self.controller.submit(rollout, harness, fixed) for rollout in queued]
        rollouts = tuple(future.result(300) for future in ended)
        for rollout in rollouts:
            print(rollout.id, rollout.outcome, rollout.reward, rollout.error[-500:])
        return Group(id=f"g-{name}", rollouts=rollouts)

    def _step(self, step: int, groups: Sequence[Group]) -> None:
        began = time.time()
        self.store.flush()
        sets = {r.id: build_samples(self.store.calls(r.id), codec().decode) for group in groups for r in group.rollouts}
        batch = build_batch(groups, sets, self.config, step, step)
        for rollout in batch.rollouts:
            self.store.put_rollout(rollout)
        self.store.put_samples(RUN_ID, step, batch.samples, batch.breaks)
        for place, floats in learner_numbers(step, batch):
            if place.rollout_id.endswith("-0"):  # of one rollout of each group, so that the file stays small
                self.store.put_token_stats(RUN_ID, step, place.rollout_id, place.sample_index, floats)
        metrics = {**batch.metrics, "entropy": 0.8 - 0.1 * step, "approx_kl": 0.003, "grad_norm": 0.5}
        self.store.put_step(
            Step(
                run_id=RUN_ID, index=step, version=step + 1, rollout_ids=tuple(r.id for r in batch.rollouts),
                metrics=metrics, started_at=began, finished_at=time.time(), skipped=batch.skipped,
            )
        )  # fmt: skip

    def close(self) -> None:
        self.controller.close()
        self.gateway.close()
        self.store.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="agents-", dir="/tmp") as folder:
        recorder = Recorder(Path(folder))
        try:
            recorder.record()
            text = decoded_by(lambda: codec().decode)
            vocabulary = {id: text.text(id).encode() for id in range(codec().vocabulary_size)}
            path = export_run(
                recorder.store, RUN_ID, HERE / "agents.llab", manifest={"run_id": RUN_ID}, vocabulary=vocabulary
            )
            tidy(path)
            print(path, path.stat().st_size)
        finally:
            recorder.close()


if __name__ == "__main__":
    main()
