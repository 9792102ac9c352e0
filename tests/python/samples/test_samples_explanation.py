"""What a person reads about breaks, and that finding them looks at each message a bounded number of times."""

from __future__ import annotations

import pytest
from samples_builders import assistant, make_call, user

from lightning_lab.records import Break, BreakCause, Call, Message
from lightning_lab.samples import build_samples, count_breaks, explain, history


def _break(cause: BreakCause, number: int, *, index: int = 5, rollout: str = "r") -> Break:
    return Break(
        rollout_id=rollout, call_id=f"c{number}", previous_call_id=f"c{number - 1}", index=index, cause=cause,
        before="", after="",
    )  # fmt: skip


@pytest.mark.parametrize("cause", list(BreakCause))
def test_every_cause_has_its_own_sentence(cause: BreakCause) -> None:
    sentence = explain(_break(cause, 3))
    assert sentence.startswith("From token 5 on, call c3 does not continue call c2: ") and sentence.endswith(".")
    assert sentence.count(". ") == 0 and "_" not in sentence
    assert len({explain(_break(other, 3)) for other in BreakCause}) == len(BreakCause)


def test_the_table_counts_what_is_read_again() -> None:
    breaks = [
        _break(BreakCause.TEMPLATE, 1),
        _break(BreakCause.TEMPLATE, 2),
        _break(BreakCause.NEW_THREAD, 2, index=3),
        _break(BreakCause.TEMPLATE, 3, rollout="other"),
    ]
    tokens = {"c0": (10, 5), "c1": (12, 4), "c2": (30, 1), "c3": (8, 8)}
    table = count_breaks(breaks, {"r": "mini", "other": "codex"}, tokens)
    assert [(row.cause, row.harness, row.count, row.tokens_reread) for row in table] == [
        ("template", "mini", 2, 12 + 16),  # c1's prompt is shorter than c0's sample; c1's sample is shorter than c2
        ("template", "codex", 1, 8),
        ("new_thread", "mini", 1, 3),
    ]
    assert all(row.explanation for row in table)
    assert count_breaks([], {}, {}) == []
    assert count_breaks(breaks[:1], {}, {})[0].tokens_reread == 0


def _restarting(calls: int) -> list[Call]:
    """A harness whose every call breaks with the one before it; messages are shared objects, as the store gives."""
    messages: tuple[Message, ...] = (user("q"),)
    made = []
    for i in range(calls):
        reply = assistant(f"a{i}")
        made.append(make_call(i, [i, 7], [8], messages=messages, reply=reply))
        messages = (*messages, reply, user(f"n{i}"))
    return made


def test_diagnosis_is_linear_in_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are read once per message; conversations are compared by their chains."""
    read = 0
    original = history.message_key

    def counting(message: Message) -> object:
        nonlocal read
        read += 1
        return original(message)

    monkeypatch.setattr(history, "message_key", counting)
    calls = _restarting(60)
    breaks = build_samples(calls).breaks
    assert [b.previous_call_id for b in breaks] == [f"c{i}" for i in range(59)]
    assert read == 2 * 60, "each message and reply once"
