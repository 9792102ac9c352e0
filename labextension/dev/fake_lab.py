"""A lab that only pretends: plays a training run into the panel, faster or slower than a real one.

For working on the panel without a model: in a notebook cell, ``fake_lab.start(speed=4)``. The frames, the table and
the kernel link are the real ones; rollouts, rewards and transcripts are made up, hostile text included.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Mapping
from typing import Any

from lightning_lab.notebook.frames import FrameBuilder, Snapshot
from lightning_lab.notebook.kernel import KernelLink
from lightning_lab.notebook.plain import json_value
from lightning_lab.notebook.rows import RolloutRow, RolloutTable
from lightning_lab.notebook.views import run_bundle

HOSTILE = (
    "<script>alert(1)</script> <img src=x onerror=alert(2)> \x1b[31mred\x1b[0m NUL:\x00 bidi:\u202eevil\u202c "
    "lone:\ud800 [link](javascript:alert(3))"
)
GROUPS, N = 4, 8


class FakeLab:
    def __init__(self, *, steps: int = 100, speed: float = 1.0, seed: int = 0, rows: int = 0, lab: str = "") -> None:
        self.id = lab or f"lab-{int(time.time())}"
        self.steps_total = steps
        self._speed = speed
        self._random = random.Random(seed)
        self._table = RolloutTable()
        self._builder = FrameBuilder(self._table)
        self._steps: list[dict[str, Any]] = []
        self._held_out: list[dict[str, Any]] = []
        self._phase: dict[str, Any] = {"name": "collecting", "since": time.time(), "step": 0, "version": 1}
        self._counters = dict.fromkeys(
            ["total", "queuing", "running", "succeeded", "failed", "cancelled", "infrastructure", "calls", "in_flight",
             "held", "prompt_tokens", "sampled_tokens"], 0)
        self._run_state, self._reason, self._finished_at = "running", "", None
        self._lab_state = "open"
        self._created_at = time.time()
        self._stop = threading.Event()
        self._paused = threading.Event()
        self._bulk = rows
        self._lock = threading.RLock()

    # -- the play -----------------------------------------------------------------------------------------------------

    def play(self) -> None:
        if self._bulk:
            self._play_bulk(self._bulk)
        for step in range(self.steps_total):
            if self._stop.is_set():
                break
            self._play_step(step)
        with self._lock:
            self._run_state = "finished" if not self._stop.is_set() else "stopped"
            self._reason = "" if self._run_state == "finished" else "Stopped by you after this step."
            self._finished_at = time.time()
            self._enter("idle", len(self._steps))

    def skill(self, step: int) -> float:
        return 0.22 + 0.72 / (1 + math.exp(-(step - 35) / 12))

    def _enter(self, name: str, step: int) -> None:
        with self._lock:
            self._phase = {"name": name, "since": time.time(), "step": step, "version": step + 1}

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds / self._speed)
        while self._paused.is_set() and not self._stop.is_set():
            time.sleep(0.05)

    def _play_bulk(self, count: int) -> None:
        with self._lock:
            for _ in range(count):
                row = self._new_row(0, f"g-{len(self._table.rows) // N:06d}", "train")
                self._finish(row, 0.5)

    def _play_step(self, step: int) -> None:
        self._enter("collecting", step)
        rows = []
        with self._lock:
            for group in range(GROUPS):
                for _ in range(N):
                    rows.append(self._new_row(step, f"g-{step * GROUPS + group:05d}", "train"))
        self._wait(0.15)
        pending = list(rows)
        running: list[int] = []
        while pending or running:
            with self._lock:
                while pending and len(running) < 8:
                    running.append(self._begin(pending.pop(0)))
                if running and self._random.random() < 0.8:
                    self._finish(running.pop(self._random.randrange(len(running))), self.skill(step))
                self._counters["in_flight"] = min(len(running), 6)
            self._wait(0.02)
        self._enter("draining", step)
        self._wait(0.08)
        self._enter("updating", step)
        self._counters["held"] = 2
        self._wait(0.5)
        with self._lock:
            self._consume(step, rows)
        self._enter("publishing", step)
        self._wait(0.05)
        self._counters["held"] = 0

    def _new_row(self, step: int, group: str, mode: str) -> int:
        place = len(self._table.rows)
        a, b, c = (self._random.randint(10, 999) for _ in range(3))
        task = f"What is {a} + {b} - {c}? Use the calculator." if place % 37 else HOSTILE[:90]
        self._table.put(RolloutRow(
            row=place, id=f"r-01JX{place:08d}{self._random.randrange(36**4):04X}", group=group, task=task,
            harness="solver", mode=mode, state="queuing", outcome="", step=None, version=step + 1, reward=None,
            advantage=None, weight=None, calls=0, tokens=0, created_at=time.time(), started_at=None, finished_at=None))
        self._count("queuing", 1)
        self._counters["total"] += 1
        return place

    def _replace(self, place: int, **changes: Any) -> RolloutRow:
        old = self._table.rows[place]
        new = RolloutRow(**{name: changes.get(name, getattr(old, name)) for name in RolloutRow.__slots__})
        if new.state != old.state:
            self._count(old.state, -1)
            self._count(new.state, 1)
        self._table.put(new)
        return new

    def _count(self, state: str, by: int) -> None:
        self._counters[state] += by

    def _begin(self, place: int) -> int:
        self._replace(place, state="running", started_at=time.time())
        return place

    def _finish(self, place: int, skill: float) -> None:
        calls, tokens = self._random.randint(2, 4), self._random.randint(18, 140)
        self._counters["calls"] += calls
        self._counters["sampled_tokens"] += tokens
        self._counters["prompt_tokens"] += tokens * 6
        luck = self._random.random()
        common = {"finished_at": time.time(), "calls": calls, "tokens": tokens}
        if luck < 0.01:
            self._counters["infrastructure"] += 1
            self._replace(place, state="failed", outcome="grader_error", **common)
        elif luck < 0.03:
            self._replace(place, state="failed", outcome="agent_error", reward=0.0, **common)
        else:
            reward = float(self._random.random() < skill)
            self._replace(place, state="succeeded", outcome="completed", reward=reward, **common)

    def _consume(self, step: int, rows: list[int]) -> None:
        rewards = [self._table.rows[place].reward for place in rows]
        known = [reward for reward in rewards if reward is not None]
        mean = sum(known) / max(1, len(known))
        for place, reward in zip(rows, rewards, strict=True):
            advantage = None if reward is None else (reward - mean) / max(0.05, math.sqrt(mean * (1 - mean)))
            self._replace(place, step=step, advantage=advantage, weight=None if reward is None else 1 / len(known))
        self._steps.append({
            "index": step, "version": step + 2, "reward": mean,
            "entropy": 1.4 * math.exp(-step / 60) + self._random.random() * 0.05, "grad_norm": 0.4, "approx_kl": 0.002,
            "clip_frac": 0.01, "rollouts": len(rows), "no_signal": 1, "skipped": "", "seconds": 0.9})
        if step % 20 == 0:
            self._held_out.append({"step": step, "value": self.skill(step) + self._random.gauss(0, 0.02), "n": 256})

    # -- what the panel sees ------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        rewards = [step["reward"] for step in self._steps]
        return Snapshot(
            lab=self.id, lab_state=self._lab_state,
            run={"id": f"01JXRUN{self.id[-6:]}", "kind": "fit", "state": self._run_state, "reason": self._reason,
                 "created_at": self._created_at, "finished_at": self._finished_at, "steps_total": self.steps_total,
                 "harness": "solver", "policy": "torch/quickstart"},
            phase=dict(self._phase), counters=dict(self._counters),
            reward={"now": rewards[-1] if rewards else None, "best": max(rewards, default=None),
                    "held_out": list(self._held_out)},
            steps=tuple(self._steps), paused=self._paused.is_set())

    def push_forever(self, kernel: KernelLink) -> None:
        seq, next_key, last = 0, 0.0, None
        while True:
            with self._lock:
                snapshot = self.snapshot()
                now = time.monotonic()
                key = now >= next_key
                fields = snapshot.fields()
                if key or fields != last or self._builder.has_news(snapshot):
                    next_key = now + (1 if self._run_state == "running" else 5) if key else next_key
                    seq += 1
                    frame = self._builder.build(snapshot, seq=seq, key=key)
                    last = fields
                    kernel.push(frame.header, frame.buffers)
            time.sleep(0.1)

    def bundle(self) -> dict[str, Any]:
        with self._lock:
            return run_bundle(self.snapshot(), self._table.rows[-300:], open_panel=True)

    # -- requests -----------------------------------------------------------------------------------------------------

    def answer(self, data: Mapping[str, Any]) -> dict[str, Any]:
        try:
            result = getattr(self, f"_on_{data['method']}")(data.get("params", {}))
            return {"id": data["id"], "ok": True, "result": result}
        except Exception as error:
            return {"id": data["id"], "ok": False, "error": {"message": str(error), "action": "Try something else."}}

    def _on_hello(self, _: Any) -> dict[str, Any]:
        return {"schema": 1, "package": "0.1.0", "lab": self.id}

    def _on_select(self, params: Any) -> dict[str, Any]:
        self.selection = params
        return {}

    def _on_action(self, params: Any) -> dict[str, Any]:
        name = params["name"]
        if name == "pause":
            self._paused.set()
        elif name == "resume":
            if not self._paused.is_set():
                raise ValueError("Nothing is paused.")
            self._paused.clear()
        else:
            self._stop.set()
        return {"done": True}

    def _on_rollout(self, params: Any) -> dict[str, Any]:
        row = next(row for row in self._table.rows if row.id == params["id"])
        return json_value(detail(row))


def detail(row: RolloutRow) -> dict[str, Any]:
    hostile = row.row % 37 == 0
    prompt = HOSTILE if hostile else row.task
    system = {"role": "system", "content": "You are a careful solver. Use the calculator for every sum.\nAnswer with the number only."}
    ask = {"role": "user", "content": prompt}
    use = {"role": "assistant", "content": "", "reasoning": "The sum has three terms; I will let the calculator add them before I answer.",
           "tool_calls": [{"id": "call_1", "name": "calc", "arguments": '{"expr": "412 + 77 - 31"}'}]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "458" if not hostile else HOSTILE * 3}
    long_use = {"role": "assistant", "content": "Let me check that with a second look.",
                "tool_calls": [{"id": "call_2", "name": "calc", "arguments": '{"expr": "(412 + 77) - 31", "precision": 12, "note": "a longer argument that does not fit on one line"}'}]}
    final = {"role": "assistant", "content": "458" if not hostile else HOSTILE}
    call = {"protocol": "responses", "model": "gpt-4.1", "thread": "main", "kind": "main", "delivered": True, "error": "",
            "tools": ["calc"]}
    failed = row.outcome == "agent_error"
    return {
        "v": 1,
        "rollout": {
            "id": row.id, "run_id": "01JXRUN", "group_id": row.group,
            "task": {"id": "t-1", "prompt": prompt, "answer": "458", "source": "reasoning_gym/chain_sum"},
            "harness": {"name": "solver", "version": "9f3c2ab81d", "kind": "function", "source": ""}, "mode": row.mode,
            "state": row.state, "attempt": 1, "outcome": row.outcome or None, "reward": row.reward,
            "verdict": "expected 458, got 458" if row.reward else "", "output": "458", "exit_code": 1 if failed else 0,
            "error": "" if not failed else 'Traceback (most recent call last):\n  File "cell [4]", line 7, in solver\n    bot.run()\nValueError: no tool named calc2',
            "stdout": "\x1b[32mINFO\x1b[0m loaded agent in 41 ms\ncalling model\n" + ("x" * 1_000_000 if hostile else "done\n"),
            "stderr": "" if not failed else "warning: deprecated option\n",
            "created_at": row.created_at, "started_at": row.started_at, "finished_at": row.finished_at, "step": row.step,
            "advantage": row.advantage, "weight": row.weight},
        "calls": [
            {**call, "id": "c-1", "ordinal": 0, "finish_reason": "tool_calls", "messages": [system, ask], "messages_from": 0,
             "reply": use, "prompt_tokens": 212, "sampled_tokens": 31, "versions": [12, 12], "held_s": 0.0, "duration_s": 0.21},
            {**call, "id": "c-2", "ordinal": 1, "finish_reason": "tool_calls", "messages": [result], "messages_from": 3,
             "reply": long_use, "prompt_tokens": 254, "sampled_tokens": 44, "versions": [12, 13], "held_s": 1.42, "duration_s": 1.9},
            {**call, "id": "c-3", "ordinal": 2, "finish_reason": "stop", "delivered": not hostile,
             "messages": [{"role": "tool", "tool_call_id": "call_2", "content": "458"}], "messages_from": 5,
             "reply": final, "prompt_tokens": 310, "sampled_tokens": 4, "versions": [13, 13], "held_s": 0.0, "duration_s": 0.07}],
        "samples": [{"tokens": 285, "trained": 75, "calls": ["c-1", "c-2"], "masked": {}},
                    {"tokens": 314, "trained": 4, "calls": ["c-3"], "masked": {"over_budget": 2} if hostile else {}}]
        if row.state == "succeeded" else [],
        "breaks": [{"call_id": "c-3", "previous_call_id": "c-2", "index": 268, "cause": "tool_args",
                    "before": '…"name": "calc", "arguments": {"expr":"(412 + 77) - 31"', "after": '…"name": "calc", "arguments": {"expr": "(412 + 77) - 31"'}]
        if row.state == "succeeded" else [],
    }


def start(**options: Any) -> FakeLab:
    """Start a pretended lab in this kernel."""
    from IPython import get_ipython

    lab = FakeLab(**options)
    kernel = KernelLink(get_ipython())
    kernel.serve(lab.answer)
    threading.Thread(target=lab.play, daemon=True).start()
    threading.Thread(target=lab.push_forever, args=(kernel,), daemon=True).start()
    return lab
