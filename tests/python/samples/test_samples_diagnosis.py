"""Each cause of a break, and what is no break at all."""

from __future__ import annotations

import numpy as np
import pytest
from samples_builders import assistant, make_call, system, tool_call, user

from lightning_lab.records import BreakCause, Message
from lightning_lab.samples import build_samples

SAID = assistant("the answer is 42", tool_calls=(tool_call('{"a": 1}'),))
HISTORY = (system("S"), user("q"))
PROMPT = [1, 2, 3]
REPLY = [4, 5]


def _cause(messages: tuple[Message, ...], prompt: list[int], *, said: Message = SAID, **changes: object) -> BreakCause:
    first = make_call(0, PROMPT, REPLY, messages=HISTORY, reply=said)
    second = make_call(1, prompt, [8], messages=messages, **changes)
    (found,) = build_samples([first, second]).breaks
    assert found.previous_call_id == "c0" and found.call_id == "c1"
    return found.cause


@pytest.mark.parametrize(
    ("cause", "messages", "prompt"),
    [
        (BreakCause.TEMPLATE, (*HISTORY, SAID, user("n")), [1, 2, 3, 7, 5, 6]),
        (BreakCause.EDITED, (*HISTORY, assistant("the answer is 43"), user("n")), [1, 2, 3, 7, 5, 6]),
        (BreakCause.EDITED, (system("S"), user("q"), user("n")), [1, 2, 3, 6]),
        (BreakCause.SYSTEM_CHANGED, (system("other"), user("q"), SAID, user("n")), [7, 2, 3, 4, 5, 6]),
        (BreakCause.NEW_THREAD, (system("other"), user("another question")), [7, 8, 9]),
        (BreakCause.COMPACTED, (system("S"), user("Known so far: the answer is 42"), user("n")), [1, 9, 6]),
        (BreakCause.COMPACTED, (system("S"), SAID, user("n")), [1, 4, 5, 6]),  # a sliding window
        (BreakCause.UNKNOWN, (system("S"),), [7, 8]),
    ],
)
def test_cause_by_messages(cause: BreakCause, messages: tuple[Message, ...], prompt: list[int]) -> None:
    assert _cause(messages, prompt) is cause


def test_changed_tools_are_named_when_the_prompt_differs() -> None:
    messages = (*HISTORY, SAID, user("n"))
    assert _cause(messages, [1, 7, 3, 4, 5, 6], tools=({"name": "new"},)) is BreakCause.TOOLS_CHANGED
    assert _cause(messages, [1, 2, 3, 7, 5, 6], tools=({"name": "new"},)) is BreakCause.TEMPLATE, (
        "they were rendered alike"
    )


def test_reasoning_that_is_gone_is_named_before_arguments_that_were_written_anew() -> None:
    said = assistant(reasoning="hm", tool_calls=(tool_call('{"a":  1}'),))
    shown = assistant(tool_calls=(tool_call('{"a":1}'),))
    assert _cause((*HISTORY, shown, user("n")), [1, 2, 3, 7, 6], said=said) is BreakCause.REASONING_DROPPED


def test_another_thread_that_quotes_the_same_words_is_no_summary() -> None:
    messages = (system("another"), user("a title for this:"), user("q"))
    assert _cause(messages, [7, 8, 9], thread="side") is BreakCause.NEW_THREAD
    assert _cause(messages, [7, 8, 9]) is BreakCause.COMPACTED


def test_what_goes_on_from_a_summary_is_compacted_whatever_else_changed() -> None:
    summary = make_call(
        0, PROMPT, REPLY, messages=HISTORY, reply=assistant("so far: add() subtracts"), kind="compaction"
    )
    messages = (*HISTORY, user("Known: so far: add() subtracts"))
    fresh = make_call(1, [7, 2, 3, 9], [8], messages=messages, tools=({"name": "new"},))
    assert [one.cause for one in build_samples([summary, fresh]).breaks] == [BreakCause.COMPACTED]


@pytest.mark.parametrize("length", [8, 64, 65, 500])
def test_long_replies_are_the_same_text_or_they_are_not(length: int) -> None:
    """Even ids spell ``ab``, the two odd ones ``a`` and ``b``; a difference may come late."""
    spelled = {1: "a", 3: "b"}

    def decode(ids: np.ndarray) -> str:
        return "".join(spelled.get(int(i), "ab") for i in ids)

    said = [2] * length
    messages = (*HISTORY, SAID, user("n"))
    first = make_call(0, [7], said, messages=HISTORY, reply=SAID)
    causes = []
    for echo in ([1, 3] * length, [*said[:-1], 1, 1], [3, *said[1:]]):
        (found,) = build_samples([first, make_call(1, [7, *echo, 9], [8], messages=messages)], decode).breaks
        causes.append(found.cause)
    assert causes == [BreakCause.RETOKENIZED, BreakCause.TEMPLATE, BreakCause.TEMPLATE]


def test_a_missing_id_gives_no_diagnosis() -> None:
    first = make_call(0, [1], [2, -1, 3], messages=HISTORY, reply=SAID)
    second = make_call(1, [1, 2, 9, 3, 4], [8], messages=(*HISTORY, SAID, user("n")))
    result = build_samples([first, second], lambda ids: str(np.asarray(ids).tolist()))
    assert [b.cause for b in result.breaks] == [BreakCause.UNKNOWN]
    assert result.samples[0].masked == {"missing_ids": 2}


def test_a_break_may_leave_a_parent_behind() -> None:
    """The third call continues the first exactly, but its rendering of the second reply differs."""
    first = make_call(0, [1], [2], messages=(user("q"),), reply=assistant("one"))
    second = make_call(1, [1, 2, 3], [4, 5], messages=(user("q"), assistant("one"), user("n")), reply=assistant("two"))
    messages = (*second.messages, assistant("two"), user("m"))
    third = make_call(2, [1, 2, 3, 6, 7], [8], messages=messages)
    result = build_samples([first, second, third])
    assert [(b.previous_call_id, b.index, b.cause) for b in result.breaks] == [("c1", 3, BreakCause.TEMPLATE)]
    assert [s.mask.sum() for s in result.samples] == [3, 1]


def test_twins_branches_and_parallel_starts_are_no_breaks() -> None:
    twins = [make_call(0, [1], [2], messages=(user("q"),)), make_call(1, [1], [3], messages=(user("q"),))]
    assert build_samples(twins).breaks == []
    asked = (user("q"), assistant("reply 0"), user("a"))
    branch = [twins[0], make_call(1, [1, 2, 5], [6], messages=asked), make_call(2, [1, 2, 7], [8], messages=asked)]
    assert build_samples(branch).breaks == []
    parallel = [make_call(0, [1], [2], finished_at=5.0), make_call(1, [3], [4])]
    assert build_samples(parallel).breaks == []


def test_the_previous_call_is_the_one_whose_ids_are_echoed() -> None:
    ours = make_call(0, [1], [2], messages=(user("q"),), reply=SAID, minted_ids=("t1",))
    other = make_call(1, [7], [8], messages=(user("z"),))
    broken = make_call(2, [1, 3], [4], messages=(user("changed"), SAID, user("n")))
    found = build_samples([ours, other, broken]).breaks[-1]
    assert (found.call_id, found.previous_call_id) == ("c2", "c0")
