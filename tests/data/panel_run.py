"""A small stored run of a coding agent with everything that the panel shows: for browser tests and screenshots.

Made up, but by the real parts: a real tokenizer and chat template give the ids, `build_samples` and `build_batch` cut
and weigh them, the store keeps them, `export_run` writes the file. Among its rollouts: a sub-agent, a compaction, a
retry, a side call, tool arguments that were written anew, an infrastructure failure, groups without signal, hostile
text. Always the same for the same seed.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lightning_lab.notebook.token_text import decoded_by
from lightning_lab.policy.catalog import resolve_model
from lightning_lab.records import (
    Call,
    Floats,
    HarnessInfo,
    Ids,
    Message,
    Outcome,
    Rollout,
    RolloutState,
    Run,
    Sampling,
    Step,
    Task,
)  # fmt: skip
from lightning_lab.samples import build_samples
from lightning_lab.store import Store, export_run
from lightning_lab.tokens import ChatCodec
from lightning_lab.training.batch import build_batch
from lightning_lab.training.collecting import Group
from lightning_lab.training.config import TrainConfig

START = 1_790_000_000.0
RUN_ID = "01M8PANELRUN00000000000000"
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'> \x1b[31mred\x1b[0m \x00 "
    "\u202eevil\u202c \u200b \ud800 end"
)
READ_HOSTILE = HOSTILE.replace("\ud800", "\ufffd")
"""As a model reads it: no tokenizer knows half a character."""
LONG_LINE = "x" * 1_000_000
TOOLS = (
    {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"cmd": {}}}}},
)
SYSTEM = Message(role="system", content="You fix bugs in small Python projects. Run the tests before you answer.")
BUGS = ("parse_duration ignores minutes", "slugify keeps the dots", "median is wrong for even lengths")
FILES = ("utils/time.py", "utils/text.py", "stats.py")


class Agent:
    """One rollout being played: calls with ids as the model would have read and sampled them."""

    def __init__(self, codec: ChatCodec, rollout: str, version: int, start: float, chance: random.Random) -> None:
        self.codec, self.rollout, self.version, self.now, self.chance = codec, rollout, version, start, chance
        self.calls: list[Call] = []

    def call(self, messages: Sequence[Message], reply: Message, *, after: Call | None = None, **more: Any) -> Call:
        """``after``: the call whose exact ids this prompt continues; without it the whole is rendered anew."""
        prompt = self._prompt(messages, after)
        sampled = self.codec.encode(self._said(reply) + "<|im_end|>")
        spread = np.array([self.chance.expovariate(3.0) for _ in sampled], np.float32)
        versions = np.full(len(sampled), self.version, np.int32)
        if more.pop("interrupted", False):
            versions[len(versions) // 2 :] += 1
        seconds, held = 0.3 + 0.01 * len(sampled), more.pop("held_s", 0.0)
        call = Call(
            id=f"c-{self.rollout}-{len(self.calls)}", rollout_id=self.rollout, attempt=1, ordinal=len(self.calls),
            request_id=f"q-{self.rollout}-{len(self.calls)}", protocol="chat", model="gpt-5", messages=tuple(messages),
            tools=TOOLS, reply=reply, prompt_ids=prompt, sampled_ids=sampled, logprobs=-spread, versions=versions,
            finish_reason="tool_calls" if reply.tool_calls else "stop", asked={"temperature": 1}, used=Sampling(),
            arrived_at=self.now, held_s=held, started_at=self.now + held,
            finished_at=self.now + held + seconds, delivered=True, parent_id=after.id if after else None, **more,
        )  # fmt: skip
        self.now += held + seconds + 0.4 + self.chance.random()
        self.calls.append(call)
        return call

    def _prompt(self, messages: Sequence[Message], after: Call | None) -> Ids:
        text = self.codec.render_text(messages, TOOLS)
        if after is None:
            return self.codec.encode(text)
        before = self.codec.render_text(after.messages, TOOLS) + self._said(after.reply) + "<|im_end|>"
        assert text.startswith(before), "the template renders a conversation by appending to it"
        return np.concatenate([after.prompt_ids, after.sampled_ids, self.codec.encode(text[len(before) :])])

    def _said(self, reply: Message) -> str:
        """What the template makes of a reply between the generation prompt and the end of the turn."""
        bare = self.codec.render_text([SYSTEM], TOOLS)
        whole = self.codec.render_text([SYSTEM, reply], TOOLS)
        return whole[len(bare) :].split("<|im_end|>")[0]


def bash(id: str, command: str, *, compact: bool = False) -> Message:
    separators = '{"cmd":"%s"}' if compact else '{"cmd": "%s"}'
    return Message(role="assistant", tool_calls=({"id": id, "name": "bash", "arguments": separators % command},))


def result(id: str, text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id=id)


def play(agent: Agent, task: Task, kind: str) -> None:
    """``kind``: what is special about this rollout."""
    ask = Message(role="user", content=task.prompt)
    file = FILES[int(task.id[-1])]
    opening = [SYSTEM, ask]
    look = bash("t1", f"cat {file}")
    first = agent.call(opening, look, interrupted=kind == "versions")
    if kind == "retry":
        agent.call(opening, look, kind="retry")
    source = READ_HOSTILE if kind == "hostile" else f"def fix(value):\n    return value  # {BUGS[int(task.id[-1])]}"
    seen = [*opening, look, result("t1", source)]
    if kind == "tool_args":
        seen[2] = bash("t1", f"cat {file}", compact=True)
        second = agent.call(seen, bash("t2", "pytest -q"))
    else:
        second = agent.call(seen, bash("t2", "pytest -q"), after=first)
    if kind == "side":
        title = [Message(role="user", content="Give this conversation a title of three words.")]
        agent.call(title, Message(role="assistant", content="Fix one bug"), kind="side", thread="title")
    if kind == "sub_agent":
        brief = [SYSTEM, Message(role="user", content=f"Search for other callers of the function in {file}.")]
        grep = bash("s1", "grep -rn fix .")
        sub = agent.call(brief, grep, kind="sub_agent", thread="explore-1")
        found = [*brief, grep, result("s1", "main.py:3: fix(1)")]
        agent.call(
            found, Message(role="assistant", content="One caller."), after=sub, kind="sub_agent", thread="explore-1"
        )
    seen = [*seen, bash("t2", "pytest -q"), result("t2", "1 failed, 4 passed")]
    if kind == "compacted":
        summary = Message(role="assistant", content="The test fails; the fix belongs into fix().")
        agent.call([*seen, Message(role="user", content="Summarize.")], summary, kind="compaction")
        seen = [SYSTEM, Message(role="user", content=f"{task.prompt}\n\nSo far: {summary.content}")]
        agent.call(seen, Message(role="assistant", content="Fixed: the value is converted now."))
        return
    agent.call(seen, Message(role="assistant", content="Fixed: the value is converted now."), after=second, held_s=1.2)


KINDS = ("", "tool_args", "", "sub_agent", "versions", "", "compacted", "side", "", "retry", "hostile", "")


class Maker:
    def __init__(self, store: Store, *, steps: int, groups: int, n: int, seed: int) -> None:
        self.store, self.steps, self.groups, self.n = store, steps, groups, n
        self.chance = random.Random(seed)
        self.codec = ChatCodec(resolve_model("quickstart"))
        self.now = START
        self.made = 0

    def make(self) -> None:
        config = TrainConfig(steps=self.steps, n=self.n, groups=self.groups, learning_rate=3e-5, seed=0)
        settings = {
            **config.settings(), "policy": "torch:quickstart", "harness": "mini-coder", "grader": "tests_pass",
        }  # fmt: skip
        run = Run(id=RUN_ID, kind="fit", state="running", settings=settings, created_at=START)
        self.store.put_run(run)
        for step in range(self.steps):
            self._step(step, config)
            if step % 4 == 0:
                value = min(0.95, 0.3 + 0.6 * step / self.steps)
                self.store.put_event("evaluation", RUN_ID, data={"step": step, "value": value, "n": 48, "stderr": 0.06})
        self.store.put_run(replace(run, state="finished", finished_at=self.now))
        self.store.flush()

    def _step(self, step: int, config: TrainConfig) -> None:
        began = self.now
        self._phase("collecting", step)
        made = [self._group(step, group) for group in range(self.groups)]
        self.now = max(rollout.finished_at or 0.0 for group in made for rollout, _ in group)
        sets = {rollout.id: build_samples(calls, self.codec.decode) for group in made for rollout, calls in group}
        groups = [Group(id=group[0][0].group_id, rollouts=tuple(rollout for rollout, _ in group)) for group in made]
        batch = build_batch(groups, sets, config, step, step)
        for rollout in batch.rollouts:
            self.store.put_rollout(rollout)
        self.store.put_samples(RUN_ID, step, batch.samples, batch.breaks)
        for place, floats in learner_numbers(step, batch):
            self.store.put_token_stats(RUN_ID, step, place.rollout_id, place.sample_index, floats)
        for phase, seconds in (("draining", 0.5), ("updating", 5.0), ("publishing", 0.5)):
            self._phase(phase, step)
            self.now += seconds
        metrics = {
            **batch.metrics, "entropy": 1.3 * 0.97**step + 0.02 * self.chance.random(),
            "approx_kl": 0.002 + 0.002 * self.chance.random() + (0.08 if step == self.steps // 2 else 0.0),
            "clip_frac": 0.01 + 0.02 * self.chance.random(), "grad_norm": 0.4 + 0.2 * self.chance.random(),
            "ratio_mean": 1.0, "ratio_max": 1.1 + 0.4 * self.chance.random(), "logprob_diff_max": 2e-3,
            "breaks": float(len(batch.breaks)), "seconds_update": 5.0, "seconds_collect": self.now - began - 6.0,
        }  # fmt: skip
        self.store.put_step(
            Step(
                run_id=RUN_ID,
                index=step,
                version=step if batch.skipped else step + 1,
                rollout_ids=tuple(r.id for r in batch.rollouts),
                metrics=metrics,
                started_at=began,
                finished_at=self.now,
                skipped=batch.skipped,
            )
        )

    def _phase(self, phase: str, step: int) -> None:
        data = {"phase": phase, "step": step, "version": step, "steps_total": self.steps, "at": self.now}
        self.store.put_event("phase", RUN_ID, data=data)

    def _group(self, step: int, place: int) -> list[tuple[Rollout, list[Call]]]:
        bug = self.chance.randrange(3)
        task = Task(id=f"bug-{bug}", prompt=f"Fix {FILES[bug]}: {BUGS[bug]}.", answer="5 passed")
        skill = min(0.95, 0.25 + 0.7 * step / self.steps)
        if (step + place) % 5 == 4:
            skill = 1.0  # every rollout solves it: no signal
        return [self._rollout(step, f"g-{step:03d}-{place}", task, skill) for _ in range(self.n)]

    def _rollout(self, step: int, group: str, task: Task, skill: float) -> tuple[Rollout, list[Call]]:
        number = self.made
        self.made += 1
        self.now += 0.7
        rollout = Rollout(
            id=f"r-01M8PANEL{number:06d}", run_id=RUN_ID, group_id=group, task=task, mode="train",
            harness=HarnessInfo(name="mini-coder", version="4be1c0ffee12", kind="command"),
            state=RolloutState.QUEUING, created_at=self.now,
        )  # fmt: skip
        self.store.put_rollout(rollout)
        agent = Agent(self.codec, rollout.id, step, self.now + 0.5, self.chance)
        play(agent, task, KINDS[number % len(KINDS)])
        for call in agent.calls:
            self.store.put_call(call)
            self.store.mark_delivered(call.id)
        solved = self.chance.random() < skill
        lost = number % 41 == 40
        ended = replace(
            rollout, state=RolloutState.FAILED if lost else RolloutState.SUCCEEDED,
            outcome=Outcome.GRADER_ERROR if lost else Outcome.COMPLETED, reward=None if lost else float(solved),
            verdict="The grader ran out of memory." if lost else "5 passed" if solved else "1 failed, 4 passed",
            output="Fixed: the value is converted now.", exit_code=0, started_at=self.now + 0.4,
            agent_started_at=self.now + 0.45, finished_at=agent.now + 0.6,
            stdout=HOSTILE if KINDS[number % len(KINDS)] == "hostile" else "cloned in 41 ms\n",
            stderr=LONG_LINE if number == KINDS.index("hostile") else "",
        )  # fmt: skip
        self.store.put_rollout(ended)
        return ended, agent.calls


def learner_numbers(step: int, batch: Any) -> Iterator[tuple[Any, dict[str, Floats]]]:
    """What a learner might have computed for each sample of a step."""
    rows = [row for update in batch.updates for micro_batch in update for row in micro_batch]
    noise = np.random.default_rng(step)
    for place, row in zip(batch.places, rows, strict=True):
        mask = row.sample.mask
        shift = noise.normal(0, 0.06, len(mask))
        ratio = np.where(mask, np.exp(shift), np.nan)
        clipped = np.where(mask, (np.abs(shift) > 0.12).astype(float), np.nan)
        stats = {
            "logprobs": np.where(mask, row.sample.logprobs + shift, np.nan),
            "entropy": np.where(mask, noise.gamma(1.2, 0.4, len(mask)), np.nan),
            "ratio": ratio, "clipped": clipped, "loss": -row.advantage * row.token_weight * ratio,
        }  # fmt: skip
        yield place, {name: values.astype(np.float32) for name, values in stats.items()}


def make_run(path: Path, *, steps: int = 8, groups: int = 3, n: int = 6, seed: int = 0) -> Path:
    """Write the run to ``path`` (``.llab``)."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store.sqlite") as store:
        maker = Maker(store, steps=steps, groups=groups, n=n, seed=seed)
        maker.make()
        text = decoded_by(lambda: maker.codec.decode)
        vocabulary = {id: text.text(id).encode() for id in range(maker.codec.vocabulary_size)}
        return export_run(store, RUN_ID, path, manifest={"run_id": RUN_ID}, vocabulary=vocabulary)


if __name__ == "__main__":
    print(make_run(Path(sys.argv[1])))
