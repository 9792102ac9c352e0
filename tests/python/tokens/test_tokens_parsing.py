"""Sampled text to messages: nothing is re-serialised, nothing malformed is swallowed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_lab.tokens.parsing import parse_reply


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def test_arguments_are_the_very_characters_that_were_said() -> None:
    said = '{"b" : 1,\n "a": [1.0, "x\\u00e9"]}'
    message = parse_reply(call('{"name": "f", "arguments": ' + said + "}"))
    assert message.tool_calls == ({"name": "f", "arguments": said},)
    assert message.content == ""


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"name": "f", "parameters": {}}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('[{"name": "f", "arguments": {"a": 1}}]', '{"a": 1}'),
    ],
)
def test_shapes_of_calls(body: str, arguments: str) -> None:
    assert parse_reply(call(body)).tool_calls == ({"name": "f", "arguments": arguments},)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "f(1)",
        '{"name": "f", "arguments": {"a": }}',
        '{"name": "f", "arguments": {"a": 1}',
        '{"name": "f", "arguments": 3}',
        '{"name": 3, "arguments": {}}',
        '{"arguments": {}}',
        '{"name": "f"} and more',
        "[]",
        '[{"name": "f"}',
        '[{"name": "f"},]',
    ],
)
def test_malformed_calls_stay_content(body: str) -> None:
    message = parse_reply("Let me see. " + call(body))
    assert message.tool_calls == ()
    assert message.content == "Let me see. " + call(body)


def test_content_beside_calls() -> None:
    one, two = call('{"name": "f", "arguments": {"a": 1}}'), call('{"name": "g", "arguments": {}}')
    message = parse_reply(f"First this.\n{one}\n{two}")
    assert message.content == "First this."
    assert [c["name"] for c in message.tool_calls] == ["f", "g"]
    mixed = parse_reply(f"{one}\n<tool_call>broken</tool_call>")
    assert len(mixed.tool_calls) == 1
    assert mixed.content == "<tool_call>broken</tool_call>"


@pytest.mark.parametrize("content", ["First.", " First. ", "\n\nFirst.\n", ""])
def test_space_in_front_of_a_call_is_said_too(content: str) -> None:
    separator = "\n" if content else ""
    message = parse_reply(content + separator + call('{"name": "f", "arguments": {}}'))
    assert message.content == content


def test_a_call_cut_before_its_closing_tag_counts_if_its_json_is_whole() -> None:
    assert parse_reply('<tool_call>{"name": "f", "arguments": {}}').tool_calls
    cut = '<tool_call>{"name": "f", "argum'
    assert parse_reply(cut).content == cut


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
        ("hm\n</think>\n\nYes.", "hm", "Yes."),
        ("<think>never ends", "never ends", ""),
        ("I <think> so", "", "I <think> so"),
        ("  plain \n", "", "  plain \n"),
    ],
)
def test_reasoning(text: str, reasoning: str, content: str) -> None:
    message = parse_reply(text)
    assert (message.reasoning, message.content) == (reasoning, content)


def test_calls_inside_reasoning_are_thoughts() -> None:
    message = parse_reply("<think>" + call('{"name": "f"}') + "</think>done")
    assert message.tool_calls == ()
    assert message.content == "done"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.text(), json_values, max_size=4), indent=st.sampled_from([None, 1]))
def test_any_json_arguments_come_back_unchanged(arguments: dict[str, object], indent: int | None) -> None:
    said = json.dumps(arguments, indent=indent, ensure_ascii=False)
    if "tool_call>" in said:
        return
    message = parse_reply(call(f'{{"name": "f", "arguments": {said}}}'))
    assert message.tool_calls == ({"name": "f", "arguments": said},)


@given(st.text(alphabet=st.sampled_from('<>/{}[]":,tool_callname think\n1')))
def test_any_text_parses_to_something(text: str) -> None:
    assert parse_reply(text).role == "assistant"
