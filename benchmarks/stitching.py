"""How often does a conversation break a chain of ids, with and without stitching?

    lightning-lab tokenizers                            # once: fetch the tokenizers
    python benchmarks/stitching.py --json

Multi-turn conversations whose replies are random non-special ids, reasoning of random ids, and tool calls whose JSON is
cut into tokens at random places. Per tokenizer:

* ``breaks``: calls whose prompt does not start with all that the call before read and said, although it decodes to the
  same text. There must be none;
* ``breaks_unstitched``: the same without stitching;
* ``template``: calls where the template itself writes the reply in other characters (it trims, or drops reasoning), so
  that nothing can be put back; ``template_share`` is their share of all calls that continue another.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lightning_lab.gateway.ledger import Ledger, entry
from lightning_lab.gateway.stitch import stitch
from lightning_lab.records import Ids, Message
from lightning_lab.tokens import TOKENIZERS, ChatCodec, tokenizer_directory

TOOLS = (
    {
        "type": "function",
        "function": {"name": "bash", "description": "Run a command.", "parameters": {"type": "object"}},
    },
)
WORDS = ("fix", "the", "file", "calc.py", "so", "that", "it", "works", "—", "日本", "naïve", "x = 1\n", "😀")


@dataclass(slots=True)
class Drift:
    """What was counted for one tokenizer."""

    breaks: int = 0
    breaks_unstitched: int = 0
    template: int = 0
    continued: int = 0
    """Calls that continue another."""
    changed_text: int = 0
    """Prompts whose text stitching changed: a fault."""
    survived: int = 0
    replies: int = 0
    """Replies, and those whose ids survive decode → encode."""
    by_kind: Counter[str] = field(default_factory=Counter)
    """Template breaks, by the kind of the reply."""

    def row(self) -> dict[str, Any]:
        """The numbers to print."""
        return {
            "breaks": self.breaks,
            "breaks_unstitched": self.breaks_unstitched,
            "template": self.template,
            "template_share": round(self.template / max(1, self.continued), 4),
            "template_by_kind": dict(self.by_kind),
            "continued": self.continued,
            "changed_text": self.changed_text,
            "survives_reencoding": round(self.survived / max(1, self.replies), 4),
        }


class Talk:
    """One conversation, answered with random replies."""

    def __init__(self, codec: ChatCodec, ordinary: Ids, rng: random.Random, drift: Drift) -> None:
        self._codec = codec
        self._ordinary = ordinary
        self._rng = rng
        self._drift = drift
        self._ledger = Ledger()
        self._tools: Sequence[Any] = TOOLS if rng.random() < 0.5 else ()
        self._messages = [Message(role="user", content=self._words())]
        if rng.random() < 0.5:
            self._messages.insert(0, Message(role="system", content="Be brief."))
        self._stop = _end_of_turn(codec)
        self._before: tuple[Ids, Ids, Ids, str] | None = None

    def run(self, turns: int) -> None:
        """Take turns, and count what breaks."""
        for turn in range(turns):
            rendered = self._codec.render(self._messages, self._tools)
            known = self._ledger.turns(self._messages)
            prompt = stitch(rendered, known, self._codec.decode)
            self._count(rendered, prompt)
            kind, sampled = self._reply()
            reply = self._minted(self._codec.parse(sampled), turn)
            self._drift.replies += 1
            self._drift.survived += np.array_equal(self._codec.encode(self._codec.decode(sampled)), sampled)
            minted = [call["id"] for call in reply.tool_calls]
            self._ledger.add(entry(f"c-{turn}", rendered, prompt, sampled), self._messages, reply, minted)
            self._before = (rendered, prompt, sampled, kind)
            self._messages = [*self._messages, reply, *self._next(reply)]

    def _count(self, rendered: Ids, prompt: Ids) -> None:
        decode, drift = self._codec.decode, self._drift
        drift.changed_text += decode(prompt) != decode(rendered)
        if self._before is None:
            return
        rendered_before, prompt_before, sampled, kind = self._before
        drift.continued += 1
        if not decode(rendered).startswith(decode(np.concatenate([prompt_before, sampled]))):
            drift.template += 1
            drift.by_kind[kind] += 1
            return
        drift.breaks += not _starts_with(prompt, prompt_before, sampled)
        drift.breaks_unstitched += not _starts_with(rendered, rendered_before, sampled)

    def _reply(self) -> tuple[str, Ids]:
        """(kind, ids): random ids, in half of the replies behind reasoning, with tools in front of calls."""
        parts: list[Ids] = []
        kinds: list[str] = []
        if self._rng.random() < 0.3:
            parts += [self._codec.encode("<think>\n"), self._random(20), self._codec.encode("\n</think>\n\n")]
            kinds.append("reasoning")
        if not self._tools or self._rng.random() < 0.6:
            parts.append(self._random(40))
            kinds.append("text")
        if self._tools and self._rng.random() < 0.7:
            for at in range(self._rng.choice((1, 1, 2))):
                parts.append(self._resplit(("\n" if at or "text" in kinds else "") + self._call()))
            kinds.append("tools")
        if not kinds:
            parts, kinds = [self._random(5)], ["text"]
        return "+".join(kinds), np.concatenate([*parts, self._stop])

    def _call(self) -> str:
        arguments = json.dumps(
            {"command": self._words(), "timeout": self._rng.randrange(100)},
            ensure_ascii=self._rng.random() < 0.5,
            separators=self._rng.choice(((", ", ": "), (",", ":"), (" , ", " :  "))),
        )
        return f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'

    def _resplit(self, text: str) -> Ids:
        cuts = sorted(self._rng.sample(range(1, len(text)), min(8, len(text) - 1)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return np.concatenate([self._codec.encode(piece) for piece in pieces])

    def _random(self, most: int) -> Ids:
        chosen = [self._rng.randrange(len(self._ordinary)) for _ in range(self._rng.randint(1, most))]
        return self._ordinary[chosen]

    def _minted(self, reply: Message, turn: int) -> Message:
        calls = tuple({**call, "id": f"call_{turn}_{at}"} for at, call in enumerate(reply.tool_calls))
        return replace(reply, tool_calls=calls)

    def _next(self, reply: Message) -> list[Message]:
        if not reply.tool_calls:
            return [Message(role="user", content=self._words())]
        return [Message(role="tool", content=self._words(), tool_call_id=call["id"]) for call in reply.tool_calls]

    def _words(self) -> str:
        return " ".join(self._rng.choice(WORDS) for _ in range(self._rng.randint(1, 8)))


def measure(codec: ChatCodec, conversations: int, *, seed: int = 0, turns: int = 4) -> Drift:
    """Counts over many conversations with one tokenizer."""
    drift, rng = Drift(), random.Random(seed)
    ordinary = ordinary_ids(codec)
    for _ in range(conversations):
        Talk(codec, ordinary, rng, drift).run(turns)
    return drift


def ordinary_ids(codec: ChatCodec) -> Ids:
    """All ids but the added ones: special tokens, marks of turns, reserved places."""
    added = {
        int(token["id"]) for token in json.loads((codec.directory / "tokenizer.json").read_bytes())["added_tokens"]
    }
    return np.asarray([one for one in range(codec.vocabulary_size) if one not in added], np.int32)


def _end_of_turn(codec: ChatCodec) -> Ids:
    """The id that the template writes behind a reply, shape [1]: what a model of this family learns to say."""
    shown = codec.render([Message(role="user", content="x"), Message(role="assistant", content="x")])
    ends = [one for one in shown if int(one) in codec.stop_ids]
    return np.asarray(ends[-1:], np.int32)


def _starts_with(prompt: Ids, before: Ids, sampled: Ids) -> bool:
    stop = len(before) + len(sampled)
    return np.array_equal(prompt[: len(before)], before) and np.array_equal(prompt[len(before) : stop], sampled)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizers", nargs="*", default=TOKENIZERS)
    options = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in options.tokenizers:
        started = time.perf_counter()
        rows[name] = measure(ChatCodec(tokenizer_directory(name)), options.conversations, seed=options.seed).row()
        rows[name]["seconds"] = round(time.perf_counter() - started, 1)
        if not options.json:
            print(name, rows[name])
    if options.json:
        json.dump(rows, sys.stdout)
        print()


if __name__ == "__main__":
    main()
