"""Faults that users of other systems reported at turn boundaries, as small inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from samples_builders import assistant, make_call, system, tool_call, user

from lightning_lab.records import BreakCause, Ids
from lightning_lab.samples import build_samples, cut

EOT, NEWLINE = 9, 10


def words(ids: Ids) -> str:
    """Ids 20–29 spell the same text as 30–39, in pieces of other sizes."""
    table = {20: "hel", 21: "lo", 30: "he", 31: "llo", EOT: "<eot>", NEWLINE: "\n"}
    return "".join(table.get(int(i), f"<{i}>") for i in ids)


def test_verl_6501_newline_after_the_end_of_turn_is_context() -> None:
    first = make_call(0, [1, 2], [5, EOT])
    second = make_call(1, [1, 2, 5, EOT, NEWLINE, 6], [7, EOT])
    result = build_samples([first, second])
    (sample,) = result.samples
    assert sample.mask.tolist() == [False, False, True, True, False, False, True, True]
    assert result.breaks == []


def test_verl_7807_a_template_that_strips_reasoning() -> None:
    said = assistant("42", reasoning="think")
    first = make_call(0, [1], [50, 5, EOT], messages=(user("q"),), reply=said)
    echoed = make_call(1, [1, 5, EOT, 6], [7], messages=(user("q"), said, user("next")))
    dropped = replace(echoed, messages=(user("q"), assistant("42"), user("next")))
    for second, cause in ((echoed, BreakCause.TEMPLATE), (dropped, BreakCause.REASONING_DROPPED)):
        result = build_samples([first, second])
        assert [s.mask.sum() for s in result.samples] == [3, 1], "both trained, each once"
        assert [(b.cause, b.index) for b in result.breaks] == [(cause, 1)]


def test_qwen_code_4285_and_slime_2063_messages_do_not_decide_the_parent() -> None:
    said = assistant(reasoning="r", tool_calls=(tool_call('{"a": 1}'),))
    shown = assistant(tool_calls=(tool_call('{"a":1}'),))
    first = make_call(0, [1], [2], reply=said)
    second = make_call(1, [1, 2, 3], [4], messages=(user("hi"), shown))
    result = build_samples([first, second])
    assert len(result.samples) == 1 and result.breaks == []


def test_smg_1836_arguments_serialised_anew() -> None:
    said = assistant(tool_calls=(tool_call('{"folder": "tmp"}'),))
    shown = assistant(tool_calls=(tool_call('{"folder":"tmp"}', call_id="renamed"),))
    first = make_call(0, [1], [2, 3, EOT], reply=said)
    second = make_call(1, [1, 2, 4, EOT, 5], [6], messages=(user("hi"), shown, user("and")))
    (found,) = build_samples([first, second], words).breaks
    assert (found.cause, found.index) == (BreakCause.TOOL_ARGS, 2)
    assert "<3>" in found.before and "<4>" in found.after


def test_rllm_352_same_text_other_ids() -> None:
    first = make_call(0, [1], [20, 21, EOT], reply=assistant("hello"))
    messages = (user("hi"), assistant("hello"), user("more"))
    second = make_call(1, [1, 30, 31, EOT, 6], [7], messages=messages)
    result = build_samples([first, second], words)
    assert [b.cause for b in result.breaks] == [BreakCause.RETOKENIZED]
    assert result.breaks[0].before.startswith("<1>hello") and result.breaks[0].after.startswith("<1>hello")
    assert len(result.samples) == 2


def test_prime_rl_1334_a_prompt_that_is_no_extension_is_a_new_sample() -> None:
    result = build_samples([make_call(0, [1, 2, 3], [4]), make_call(1, [1, 2], [5]), make_call(2, [8], [5])])
    assert len(result.samples) == 3


def test_minimind_850_a_special_token_inside_a_reply_is_kept() -> None:
    (sample,) = build_samples([make_call(0, [1], [5, EOT, 6])]).samples
    assert sample.ids.tolist() == [1, 5, EOT, 6] and sample.mask.tolist() == [False, True, True, True]


def test_vllm_28256_null_and_missing_logprobs() -> None:
    call = make_call(0, [1], [2, 3, 4], logprobs=np.array([-1.0, np.nan, -3.0], np.float32))
    (sample,) = build_samples([call]).samples
    assert sample.mask.tolist() == [False, True, False, True] and sample.masked == {"no_logprob": 1}
    shorter = replace(call, logprobs=np.array([-1.0, -3.0], np.float32))
    child = make_call(1, [1, 2, 3, 4, 5], [6])
    (sample,) = build_samples([shorter, child]).samples
    assert sample.mask.tolist() == [False] * 5 + [True] and sample.masked == {"unaligned": 3}


def test_ms_swift_10012_three_turns_train_the_sum_of_all_replies() -> None:
    turns = [make_call(0, [1], [2, 3]), make_call(1, [1, 2, 3, 4], [5]), make_call(2, [1, 2, 3, 4, 5, 6], [7, 8, 9])]
    (sample,) = build_samples(turns).samples
    assert sample.mask.sum() == 2 + 1 + 3
    assert [(s.start, s.stop) for s in sample.segments] == [(1, 3), (4, 5), (6, 9)]


def test_rllm_774_interleaved_agents_give_two_samples() -> None:
    a1 = make_call(0, [1, 11], [12], messages=(system("A"), user("a")), reply=assistant("a1"))
    b1 = make_call(1, [2, 21], [22], messages=(system("B"), user("b")), reply=assistant("b1"))
    a2 = make_call(2, [1, 11, 12, 13], [14], messages=(system("A"), user("a"), a1.reply, user("go")))
    b2 = make_call(3, [2, 21, 22, 23], [24], messages=(system("B"), user("b"), b1.reply, user("go")))
    result = build_samples([a1, b1, a2, b2])
    assert [[s.call_id for s in sample.segments] for sample in result.samples] == [["c0", "c2"], ["c1", "c3"]]
    assert [(b.call_id, b.cause) for b in result.breaks] == [("c1", BreakCause.NEW_THREAD)]


def test_deepagent_8_a_summarised_history_trains_each_token_once() -> None:
    long_reply = assistant("A summary of all that was done so far.")
    first = make_call(0, [1, 2], [3], messages=(system("S"), user("task")), reply=assistant("step one"))
    asked = make_call(
        1, [1, 2, 3, 4], [5], messages=(system("S"), user("task"), first.reply, user("sum up")), reply=long_reply
    )
    after = make_call(2, [1, 7, 8], [9], messages=(system("S"), user(f"Earlier: {long_reply.content} Go on.")))
    result = build_samples([first, asked, after])
    assert [s.mask.sum() for s in result.samples] == [2, 1]
    assert [(b.cause, b.call_id) for b in result.breaks] == [(BreakCause.COMPACTED, "c2")]


def test_verifiers_2036_a_retry_of_an_undelivered_call_is_one() -> None:
    lost = make_call(0, [1], [2], delivered=False)
    retry = make_call(1, [1], [3], kind="retry")
    (sample,) = build_samples([lost, retry]).samples
    assert sample.ids.tolist() == [1, 3]


def test_rllm_575_a_long_sample_is_cut_after_the_last_call_that_fits() -> None:
    turns = [make_call(0, [1], [2, 3]), make_call(1, [1, 2, 3, 4], [5]), make_call(2, [1, 2, 3, 4, 5, 6], [7, 8, 9])]
    (sample,) = build_samples(turns).samples
    short = cut(sample, 8)
    assert short.ids.tolist() == [1, 2, 3, 4, 5] and short.masked == {"over_budget": 3}
    assert cut(sample, 2).ids.tolist() == [] and cut(sample, 2).masked == {"over_budget": 6}
