"""What a harness did to a conversation, and what the gateway did to a request, as the Rollout page tells it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lightning_lab.notebook.differences import difference, gateway_changes, words_apart
from lightning_lab.records import Call, Message, Sampling

NO_IDS = np.zeros(0, np.int32)
ASK = Message(role="user", content="Fix it.")


def call(*messages: Message, reply: str = "done", **more: object) -> Call:
    made = Call(
        id="c", rollout_id="r", attempt=1, ordinal=0, request_id="q", protocol="chat", model="m", messages=messages,
        tools=(), reply=Message(role="assistant", content=reply), prompt_ids=NO_IDS, sampled_ids=NO_IDS,
        logprobs=np.zeros(0, np.float32), versions=NO_IDS, finish_reason="stop", asked={}, used=Sampling(),
        arrived_at=0.0, held_s=0.0, started_at=0.0, finished_at=1.0, delivered=True,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_conversation_that_goes_on_differs_in_nothing():
    before = call(ASK)
    after = call(ASK, before.reply, Message(role="tool", content="ok"), ordinal=1)
    assert difference(before, after, 2) is None
    assert difference(None, before, 0) is None
    assert difference(before, call(ASK, ordinal=1), 1) is None, "the same request again"


def test_what_was_rewritten_is_told_word_by_word():
    before = call(ASK, reply='{"a":  1}')
    after = call(ASK, Message(role="assistant", content='{"a": 1}'), ASK, ordinal=1)
    found = difference(before, after, 1)
    assert found is not None
    assert (found["gone"], found["previous"]) == (0, 0)
    [changed] = found["changed"]
    assert changed["role"] == "assistant"
    assert [part for part in changed["parts"] if part[0] != "="] == [["-", "  "], ["+", " "]]


def test_a_compaction_leaves_out_what_was_before():
    before = call(ASK, Message(role="assistant", content="I look."), Message(role="tool", content="text"), ordinal=4)
    after = call(Message(role="user", content="Fix it. So far: I looked."), ordinal=5)
    found = difference(before, after, 0)
    assert found is not None
    assert found["gone"] == 3
    assert [one["role"] for one in found["changed"]] == ["user"]


def test_reasoning_that_did_not_come_back_and_tools_that_came_and_went():
    said = Message(role="assistant", content="yes", reasoning="think hard")
    before = call(ASK, tools=({"function": {"name": "bash"}}, {"name": "grep"}), **{"reply": "yes"})
    before = replace(before, reply=said)
    echo = replace(said, reasoning="")
    found = difference(before, call(ASK, echo, tools=({"name": "grep"}, {"type": "web"})), 2)
    assert found is not None
    assert (found["tools_gone"], found["tools_new"]) == (["bash"], ["web"])
    assert found["changed"] == [{"role": "reasoning", "parts": [["-", "think hard"]]}]


def test_a_long_text_shows_its_change_and_not_its_length():
    same = "word " * 20_000
    parts = words_apart(f"{same}one {same}", f"{same}two {same}")
    assert ["-", "one"] in parts and ["+", "two"] in parts
    assert sum(len(text) for _, text in parts) < 1_000
    apart = words_apart("a " * 5_000, "b " * 5_000)
    assert [kind for kind, _ in apart] == ["-", "+", "="]


def test_the_run_decides_how_to_sample():
    asked = {"temperature": 0.2, "max_completion_tokens": 9, "stop": "end", "top_p": 1}
    used = Sampling(temperature=1.0, max_tokens=4, stop=("end",))
    told = gateway_changes(call(ASK, asked=asked, used=used, left_replies=("c-7", "gone"), kept_replies=2), {"c-7": 7})
    assert told["sampling"] == [["temperature", 0.2, 1.0], ["max_completion_tokens", 9, 4]]
    assert (told["kept"], told["left"]) == (2, [7])
