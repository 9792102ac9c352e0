"""What is told of a reply before its end is what the whole reply begins with, wherever it is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_lab.policy.catalog import resolve_model
from lightning_lab.tokens import ChatCodec
from lightning_lab.tokens.parsing import parse_beginning, parse_reply

PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "f"}',
    "\n",
    " ",
    "<",
    "a",
    "thinking",
    "é",
    "<th",
]
TEXT = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


@given(TEXT, st.booleans())
def test_the_whole_begins_with_what_was_sure(text: str, opened: bool) -> None:
    whole = parse_reply(text, opened=opened)
    before = ("", "")
    for cut in range(len(text) + 1):
        sure = parse_beginning(text[:cut], opened=opened)
        assert whole.content.startswith(sure.content) and whole.reasoning.startswith(sure.reasoning)
        assert sure.content.startswith(before[0]) and sure.reasoning.startswith(before[1]), "it never takes back"
        assert not sure.content or whole.reasoning == sure.reasoning, "a thought is complete before content is told"
        before = (sure.content, sure.reasoning)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Let me", "", "Let me"),
        ("Let me see.\n", "", "Let me see."),
        ("Let me see.\n<tool_c", "", "Let me see."),
        ('Let me see.\n<tool_call>{"name"', "", "Let me see."),
        ("<thin", "", ""),
        ("<think>\nHm, so </thi", "Hm, so ", ""),
        ("<think>\nHm.\n</think>\n\nSo", "Hm.", "So"),
    ],
)
def test_all_that_is_sure_is_told(text: str, reasoning: str, content: str) -> None:
    sure = parse_beginning(text, opened=False)
    assert (sure.reasoning, sure.content) == (reasoning, content)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 5), st.booleans())
def test_ids_that_come_one_by_one_say_the_same(ids: list[int], size: int, ends: bool) -> None:
    """Characters that span ids are told whole, and the end of the turn is no text."""
    said = np.concatenate([SPELLED[one] for one in ids] + ([END] if ends else [])).astype(np.int32)
    whole, beginning = CODEC.parse(said), CODEC.beginning()
    sure = [beginning.read(said[at : at + size]) for at in range(0, len(said), size)]
    assert all(whole.content.startswith(one.content) for one in sure)
    assert [len(one.content) for one in sure] == sorted(len(one.content) for one in sure)
    assert whole.content.removesuffix("\n").startswith(sure[-1].content)
    assert len(whole.content) - len(sure[-1].content) <= 1


CODEC = ChatCodec(resolve_model("quickstart"))
SPELLED = [CODEC.encode(text) for text in ("one", " two", "é", "😀", "7 + 4", ".\n")]
END = np.array(sorted(CODEC.stop_ids)[:1], np.int32)
