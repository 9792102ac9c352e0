"""What calls take on disk and in memory, and how fast they go in. Prints one JSON object.

    python benchmarks/storage.py --json

128 rollouts of 40 calls; every call repeats the whole conversation, up to 32 K tokens, as agents do. New in a call are
what the harness says (600 tokens) and the reply (200): texts, ids, log-probs and versions.

* `disk_over_new`: size of the closed store over the bytes that are new; `repeated_over_new`: the same if every prompt
  were stored in full.
* `mb_on_disk`, `mb_per_call` (growth of resident memory), `calls_per_s`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightning_lab.records import Call, Floats, Ids, Message, Sampling
from lightning_lab.store import Store

CHARACTERS = 4
"""Of one token, on average."""
VOCABULARY = 150_000


@dataclass
class Conversation:
    """One rollout, call after call."""

    rollout_id: str
    said: int
    replied: int
    random: np.random.Generator

    def __post_init__(self) -> None:
        self.messages: list[Message] = []
        self.ids: list[Ids] = []
        self.new_bytes = 0
        self.repeated_bytes = 0

    def call(self, ordinal: int) -> Call:
        """The next call; its messages are built anew, as a request's are."""
        self.messages.append(Message(role="user" if ordinal == 0 else "tool", content=self._text(self.said)))
        self.ids.append(self._ids(self.said))
        prompt, sampled = np.concatenate(self.ids), self._ids(self.replied)
        reply = Message(role="assistant", content=self._text(self.replied))
        logprobs: Floats = -self.random.random(self.replied, np.float32)
        call = recorded(
            self.rollout_id, ordinal, tuple(again(one) for one in self.messages), reply, prompt, sampled, logprobs
        )
        self.messages.append(reply)
        self.ids.append(sampled)
        each = CHARACTERS + 4
        self.new_bytes += self.said * each + self.replied * (each + 8)
        self.repeated_bytes += len(prompt) * each + self.replied * (each + 8)
        return call

    def _ids(self, count: int) -> Ids:
        return self.random.integers(0, VOCABULARY, count, np.int32)

    def _text(self, tokens: int) -> str:
        return self.random.bytes(tokens * CHARACTERS // 2).hex()


def again(message: Message) -> Message:
    """An equal message that shares nothing."""
    return Message(role=message.role, content="".join(message.content))


def recorded(
    rollout_id: str,
    ordinal: int,
    messages: tuple[Message, ...],
    reply: Message,
    prompt: Ids,
    sampled: Ids,
    logprobs: Floats,
) -> Call:
    now = time.time()
    return Call(
        id=f"c-{rollout_id}-{ordinal}",
        rollout_id=rollout_id,
        attempt=1,
        ordinal=ordinal,
        request_id=f"chatcmpl-{rollout_id}-{ordinal}",
        protocol="chat",
        model="m",
        messages=messages,
        tools=(),
        reply=reply,
        prompt_ids=prompt,
        sampled_ids=sampled,
        logprobs=logprobs,
        versions=np.zeros(len(sampled), np.int32),
        finish_reason="stop",
        asked={"temperature": 1.0},
        used=Sampling(max_tokens=len(sampled)),
        arrived_at=now,
        held_s=0.0,
        started_at=now,
        finished_at=now,
        delivered=False,
    )


def rounds(conversations: list[Conversation], calls: int) -> Iterator[Call]:
    """All rollouts take turns, as they do at a gateway."""
    for ordinal in range(calls):
        for conversation in conversations:
            yield conversation.call(ordinal)


def measure(rollouts: int, calls: int, said: int, replied: int) -> dict[str, float]:
    random = np.random.default_rng(0)
    conversations = [Conversation(f"r-{at}", said, replied, random) for at in range(rollouts)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        store, spent, before = Store(path), 0.0, resident_mb()
        for call in rounds(conversations, calls):
            started = time.perf_counter()
            store.put_call(call).result()
            store.mark_delivered(call.id)
            spent += time.perf_counter() - started
        kept = sum(ids.nbytes for one in conversations for ids in one.ids) / 2**20
        grown = (
            resident_mb() - before - kept - sum(len(m.content) for one in conversations for m in one.messages) / 2**20
        )
        store.close()
        size = path.stat().st_size
    new = sum(one.new_bytes for one in conversations)
    return {
        "calls": rollouts * calls,
        "mb_on_disk": size / 2**20,
        "disk_over_new": size / new,
        "repeated_over_new": sum(one.repeated_bytes for one in conversations) / new,
        "mb_per_call": grown / (rollouts * calls),
        "calls_per_s": rollouts * calls / spent,
    }


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--calls", type=int, default=40)
    options = parser.parse_args()
    figures = measure(options.rollouts, options.calls, 600, 200)
    print(json.dumps({key: round(value, 4) for key, value in figures.items()}, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
