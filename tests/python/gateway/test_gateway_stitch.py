"""Token in, token out: sampled ids come back wherever the text is the same, and only there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gateway_lab
import numpy as np
import pytest
from gateway_lab import END, ScriptedPolicy, chat_body, tool_call
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_lab.gateway.delivery import Delivery
from lightning_lab.gateway.ledger import Entry, Ledger
from lightning_lab.gateway.ledger import entry as make_entry
from lightning_lab.gateway.stitch import stitch, stitched
from lightning_lab.policy.base import Rendered
from lightning_lab.records import Ids, Message

PAIRS = 300
"""Ids from here on stand for two characters of the alphabet; the tokenizer uses them, the sampler may not."""
ALPHABET = 'ab {}":,\n'


def spell(text: str) -> Ids:
    """The tokenizer: greedy pairs."""
    ids, at = [], 0
    while at < len(text):
        pair = text[at : at + 2]
        if len(pair) == 2 and all(letter in ALPHABET for letter in pair):
            ids.append(PAIRS + ALPHABET.index(pair[0]) * len(ALPHABET) + ALPHABET.index(pair[1]))
            at += 2
        else:
            ids.append(ord(text[at]))
            at += 1
    return np.asarray(ids, np.int32)


def read(ids: Ids) -> str:
    out = []
    for one in map(int, ids):
        if one >= PAIRS:
            out += [ALPHABET[(one - PAIRS) // len(ALPHABET)], ALPHABET[(one - PAIRS) % len(ALPHABET)]]
        else:
            out.append("<end>" if one == END else chr(one))
    return "".join(out)


def letters(text: str) -> Ids:
    """The same text, one id a character: how a model may say it."""
    return np.asarray([ord(letter) for letter in text], np.int32)


def entry(rendered: Ids, prompt: Ids, sampled: Ids) -> Entry:
    return make_entry("c", rendered, prompt, sampled)


text = st.text(ALPHABET, min_size=1, max_size=30)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(text, text), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_every_turn_is_put_back_and_no_text_changes(turns, rng):
    conversation, parent = "", None
    for asked, said in turns:
        conversation += f"U{asked}A"
        rendered = spell(conversation)
        prompt = stitch(rendered, [parent], read) if parent else rendered
        assert read(prompt) == conversation
        if parent is not None:
            whole = np.concatenate([parent.reading.prompt, parent.sampled])
            assert np.array_equal(prompt[: len(whole)], whole)
        sampled = np.concatenate([spell(said[: rng.randrange(len(said) + 1)]), letters(said)])[: len(said)]
        sampled = letters(said) if read(sampled) != said else sampled
        parent = entry(rendered, prompt, sampled)
        conversation += said


def test_an_edited_reply_keeps_the_rendered_ids():
    prompt = spell("Uabab A")
    parent = entry(prompt, prompt, letters("abab"))
    edited = spell("Uabab Aabaa Ub")
    assert np.array_equal(stitch(edited, [parent], read), edited)


def test_an_edited_reply_leaves_earlier_turns_stitched():
    rendered = spell("Uaa bbU")
    stitched = np.concatenate([letters("Uaa bb"), spell("U")])
    again = np.concatenate([rendered, spell("bbbb")])
    out = stitch(again, [entry(rendered, stitched, letters("aaaa"))], read)
    assert np.array_equal(out, np.concatenate([stitched, spell("bbbb")]))


def test_of_a_changed_beginning_only_the_reply_is_put_back():
    before = spell("S" + "ab" * 200 + "A")
    drifted = np.concatenate([letters("S" + "ab" * 200), spell("A")])
    changed = spell("T" + "ab" * 200 + "A" + "ab" + "U")
    out = stitch(changed, [entry(before, drifted, letters("ab"))], read)
    assert out.tolist() == [*spell("T" + "ab" * 200 + "A"), *letters("ab"), *spell("U")]


def test_a_cut_inside_a_rendered_id_is_no_cut():
    prompt = spell("UA")
    parent = entry(prompt, prompt, letters("aba"))
    rendered = spell("UAabab")  # the template goes on inside the last pair
    out = stitch(rendered, [parent], read)
    assert read(out) == "UAabab"
    assert np.array_equal(out, rendered)


def test_replies_are_found_where_the_beginning_changed():
    """A system text that changes with every call leaves the model's own ids in place."""
    first = spell("SabUaba?A")
    one = entry(first, first, letters("bb ab"))
    second = spell("SabUaba?Abb abUaba!A")
    two = entry(second, stitch(second, [one], read), letters("a{}b"))
    rendered = spell("SbaUaba?Abb abUaba!Aa{}bU?A")
    out = stitch(rendered, [one, two], read)
    assert read(out) == read(rendered)
    expected = [*spell("SbaUaba?A"), *letters("bb ab"), *spell("Uaba!A"), *letters("a{}b"), *spell("U?A")]
    assert out.tolist() == expected


def test_replies_are_found_when_their_prompts_are_forgotten():
    first = spell("SabUaba?A")
    one = replace(entry(first, first, letters("bb ab")), reading=None)
    rendered = spell("SabUaba?Abb abUaba!A")
    assert stitch(rendered, [one], read).tolist() == [*first, *letters("bb ab"), *spell("Uaba!A")]


def test_it_is_told_which_replies_were_put_back_and_which_read_otherwise_now():
    first, second = spell("UabA"), spell("UabAbbUab abA")
    one = make_entry("one", first, first, letters("bb"))
    two = make_entry("two", second, second, letters("ab"))
    same = stitched(spell("UabAbbUab abAabUbA"), [one, two], read)
    assert (same.kept, same.left) == (1, ())  # the first was put back into the second's prompt already
    last = stitched(spell("UabAbbUab abAbaUbA"), [one, two], read)
    assert (last.kept, last.left) == (0, ("two",))
    early = stitched(spell("UabAaaUab abAabUbA"), [one, two], read)
    assert (early.kept, early.left) == (1, ("one",))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(text, text), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_wherever_replies_stand_no_text_changes(turns, rng):
    conversation, known = "S", []
    for asked, said in turns:
        prompt = spell(conversation + f"U{asked}A")
        known.append(replace(entry(prompt, prompt, letters(said)), reading=None))
        conversation += f"U{asked}A{said if rng.random() < 0.8 else said + 'x'}"
    rendered = spell(conversation)
    out = stitch(rendered, known, read)
    assert read(out) == conversation


# -- the ledger --------------------------------------------------------------------------------------------------------


def message(role: str, content: str, **more: Any) -> Message:
    return Message(role=role, content=content, **more)


def call_said(call_id: str) -> Message:
    return message("assistant", "", tool_calls=({"id": call_id, "name": "f", "arguments": "{}"},), reasoning="why")


def ids(*values: int) -> Ids:
    return np.asarray(values, np.int32)


def test_an_echo_is_found_by_its_minted_id_or_by_its_words():
    ledger = Ledger()
    ask = message("user", "q")
    assert ledger.turns([ask]) == []
    by_id = make_entry("c-1", ids(1), ids(1), ids(2))
    by_words = make_entry("c-2", ids(1), ids(1), ids(3))
    ledger.add(by_id, [ask], call_said("call_1"), ["call_1"])
    ledger.add(by_words, [ask], message("assistant", "words", reasoning="dropped later"), [])
    echoed = message("assistant", "other", tool_calls=({"id": "call_1", "name": "f", "arguments": "{ }"},))
    assert ledger.turns([ask, echoed, message("tool", "r", tool_call_id="call_1")]) == [by_id]
    assert ledger.turns([ask, message("assistant", "words"), message("user", "go on")]) == [by_words]
    assert ledger.turns([ask, message("assistant", "Words"), message("user", "go on")]) == []
    assert ledger.turns([message("user", "Q"), message("assistant", "words")]) == []


def test_a_signature_finds_the_call_whatever_became_of_its_words():
    ledger = Ledger()
    call = make_entry("c-1", ids(1), ids(1), ids(2))
    ledger.add(call, [message("user", "q")], message("assistant", "a", reasoning="why"), ["ll_reasoning_1"])
    edited = [message("user", "Q"), message("assistant", "A"), message("user", "go on")]
    assert ledger.turns(edited) == []
    assert ledger.turns(edited, {1: "ll_reasoning_1"}) == [call]
    assert ledger.take_proofs(edited, {1: "ll_reasoning_1"}) == ["c-1"]
    assert ledger.take_proofs(edited, {1: "ll_reasoning_1"}) == []


def test_arguments_of_equal_value_are_read_as_they_were_said():
    ledger = Ledger()
    said = '{"b":  1 , "a": "\\u2014"}'
    reply = message("assistant", "", tool_calls=({"id": "t-1", "name": "f", "arguments": said},))
    ledger.add(make_entry("c-1", ids(1), ids(1), ids(2)), [message("user", "q")], reply, ["t-1"])

    def echoed(arguments: str) -> str:
        call = {"id": "t-1", "name": "f", "arguments": arguments}
        [back] = ledger.as_said([message("assistant", "", tool_calls=(call,))])
        return back.tool_calls[0]["arguments"]

    assert echoed('{"a":"—","b":1}') == said
    assert echoed('{"a":"—","b":2}') == '{"a":"—","b":2}'


def test_the_latest_known_reply_is_the_parent():
    ledger = Ledger()
    history = [message("user", "q")]
    for turn in range(3):
        reply = call_said(f"call_{turn}")
        ledger.add(make_entry(f"c-{turn}", ids(1), ids(1), ids(2)), history, reply, [f"call_{turn}"])
        history = [*history, reply, message("tool", "r", tool_call_id=f"call_{turn}")]
    assert [turn.call_id for turn in ledger.turns(history)] == ["c-0", "c-1", "c-2"]


def test_the_ledger_forgets_prompts_first_and_replies_last(monkeypatch):
    monkeypatch.setattr("lightning_lab.gateway.ledger._MOST_ENTRIES", 50)
    ledger = Ledger()
    for number in range(100):
        array = np.zeros(100_000, np.int32)
        call = make_entry(f"c-{number}", array, array, array[:1])
        ledger.add(call, [message("user", str(number))], message("assistant", "a"), [f"m-{number}"])
    known = {n: ledger.turns([message("user", str(n)), message("assistant", "a")]) for n in range(100)}
    assert [n for n, turns in known.items() if turns] == list(range(50, 100))
    assert [n for n, turns in known.items() if turns and turns[0].reading] == list(range(95, 100))
    assert len(ledger._by_minted) == len(ledger._by_conversation) == len(ledger._keys) == 50


# -- through the gateway -----------------------------------------------------------------------------------------------


class Drifting(ScriptedPolicy):
    """Renders in pairs, samples in single characters."""

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        turns = super().decode(super().render(messages, tools).ids).split("<end>")
        ids = [one for turn in turns for one in (*spell(turn), END)]
        return Rendered(ids=np.asarray(ids[:-1], np.int32))

    def decode(self, ids: Ids) -> str:
        return read(ids)


@pytest.mark.parametrize("stitching", [True, False])
@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_a_conversation_is_one_chain_of_ids(make_lab, monkeypatch, stitching, protocol):
    monkeypatch.setattr(gateway_lab, "make_policy", Drifting)
    said = itertools.cycle([tool_call("b", {"a": "ab ab"}), "ab ab"])
    lab = make_lab(lambda _: next(said), stitching=stitching)
    async with lab.client() as client:
        history: list[Any] = [{"role": "user", "content": "ab ab ba"}]
        for _ in range(5):
            if protocol == "chat":
                body = {"model": "m", "messages": history}
                reply = (await client.post("/chat/completions", json=body)).json()["choices"][0]["message"]
                history.append(reply)
                for call in reply.get("tool_calls", []):
                    history.append({"role": "tool", "tool_call_id": call["id"], "content": "ab"})
            else:
                answer = (await client.post("/responses", json={"model": "m", "input": history})).json()
                history += answer["output"]
                for item in answer["output"]:
                    if item["type"] == "function_call":
                        history.append({"type": "function_call_output", "call_id": item["call_id"], "output": "ab"})
            history.append({"role": "user", "content": "ab"})
    calls = lab.calls()
    assert len(calls) == 5
    assert [call.parent_id for call in calls] == [None, *(call.id for call in calls[:-1])]
    broken = 0
    for before, after in itertools.pairwise(calls):
        whole = np.concatenate([before.prompt_ids, before.sampled_ids])
        broken += not np.array_equal(after.prompt_ids[: len(whole)], whole)
    assert broken == (0 if stitching else 4)


async def test_an_echoed_id_proves_delivery(make_lab, monkeypatch):
    replies = iter([tool_call("f", {}), "done"])
    lab = make_lab(lambda _: next(replies))
    finish = Delivery.finish

    async def unseen(self: Delivery, reply: Any) -> bool:
        await finish(self, reply)
        return False

    monkeypatch.setattr(Delivery, "finish", unseen)
    reply = (await lab.chat()).json()["choices"][0]["message"]
    assert not lab.calls()[0].delivered
    call_id = reply["tool_calls"][0]["id"]
    body = chat_body()
    body["messages"] += [reply, {"role": "tool", "tool_call_id": call_id, "content": "r"}]
    async with lab.client() as client:
        assert (await client.post("/chat/completions", json=body)).status_code == 200
    assert [call.delivered for call in lab.calls()] == [True, False]
