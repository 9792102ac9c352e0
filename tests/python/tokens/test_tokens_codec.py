"""Rendering, decoding, templates, and the errors of a tokenizer that does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lightning_lab.records import Message
from lightning_lab.tokens import ChatCodec, TemplateError, TokenizerError

MakeTokenizer = Callable[..., Path]

TOOL = {
    "type": "function",
    "function": {"name": "calc", "description": "Ä & <b>", "parameters": {"type": "object", "properties": {}}},
}
USER = Message(role="user", content="2+2?")
TOOL_TURN = (
    USER,
    Message(role="assistant", tool_calls=({"id": "c-1", "name": "calc", "arguments": '{"expr": "2+2"}'},)),
    Message(role="tool", content="4", tool_call_id="c-1", name="calc"),
)


def test_renders_as_transformers_does(make_tokenizer: MakeTokenizer) -> None:
    from transformers import AutoTokenizer

    directory = make_tokenizer()
    reference = AutoTokenizer.from_pretrained(directory)
    messages = [
        {"role": "user", "content": "2+2?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c-1", "type": "function", "function": {"name": "calc", "arguments": {"expr": "2+2"}}}
            ],
        },
        {"role": "tool", "content": "4", "tool_call_id": "c-1", "name": "calc"},
    ]
    expected = reference.apply_chat_template(messages, tools=[TOOL], add_generation_prompt=True, return_dict=False)
    assert ChatCodec(directory).render(TOOL_TURN, [TOOL]).tolist() == list(expected)


def test_ids_round_trip_and_show_special_tokens(make_tokenizer: MakeTokenizer) -> None:
    codec = ChatCodec(make_tokenizer())
    ids = codec.render([USER])
    assert ids.dtype == np.int32
    assert codec.decode(ids) == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    assert codec.encode(codec.decode(ids)).tolist() == ids.tolist()


def test_a_reply_parses_and_renders_to_the_ids_that_were_sampled(make_tokenizer: MakeTokenizer) -> None:
    codec = ChatCodec(make_tokenizer())
    sampled = codec.encode(
        "<think>\neasy\n</think>\n\n\n"
        '<tool_call>\n{"name": "calc", "arguments": {"expr": "2+2"}}\n</tool_call><|im_end|>'
    )
    reply = codec.parse(sampled)
    assert reply.reasoning == "easy"
    assert reply.tool_calls == ({"name": "calc", "arguments": '{"expr": "2+2"}'},)
    prompt = codec.render([USER], [TOOL])
    following = codec.render([USER, reply, Message(role="tool", content="4")], [TOOL])
    assert following[: len(prompt) + len(sampled)].tolist() == [*prompt.tolist(), *sampled.tolist()]


def test_special_tokens_inside_a_reply_stay(make_tokenizer: MakeTokenizer) -> None:
    codec = ChatCodec(make_tokenizer())
    assert codec.parse(codec.encode("a<|im_start|>b<|im_end|>")).content == "a<|im_start|>b"
    assert codec.parse(np.zeros(0, dtype=np.int32)).content == ""


def test_arguments_that_are_no_object_reach_the_template_as_text(make_tokenizer: MakeTokenizer) -> None:
    codec = ChatCodec(make_tokenizer())
    broken = Message(role="assistant", tool_calls=({"id": "c", "name": "calc", "arguments": '{"expr": '},))
    assert '"arguments": {"expr": }' in codec.render_text([USER, broken], [TOOL])


def test_arguments_are_rendered_in_the_very_characters_that_were_said(make_tokenizer: MakeTokenizer) -> None:
    said = '{"b":1 ,  "a": "\\u2014"}'
    turn = Message(role="assistant", tool_calls=({"id": "c", "name": "calc", "arguments": said},))
    dumps = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson"
    ends = " }}{% endfor %}{% endfor %}{{ tools }}"
    codec = ChatCodec(make_tokenizer(dumps + ends))
    assert codec.render_text([turn]).startswith(said)
    sorted_keys = ChatCodec(make_tokenizer(dumps + "(sort_keys=true)" + ends))
    assert sorted_keys.render_text([turn]).startswith('{"a": "—", "b": 1}'), "a template may ask for its own form"
    reads = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.b"
    assert ChatCodec(make_tokenizer(reads + ends)).render_text([turn]).startswith("1")


def test_reasoning_is_not_dropped_by_a_template_that_knows_none(
    make_tokenizer: MakeTokenizer, plain_template: str
) -> None:
    codec = ChatCodec(make_tokenizer(plain_template))
    said = "<think>\nwhy\n</think>\n\nYes."
    reply = codec.parse(codec.encode(said + "<|im_end|>"))
    assert (reply.reasoning, reply.content) == ("why", "Yes.")
    assert f"<|im_start|>assistant\n{said}<|im_end|>" in codec.render_text([USER, reply, USER])


FAMILIES = {
    "llama": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "deepseek": ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gets_tools_in_its_own_turns(make_tokenizer: MakeTokenizer, family: str) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    codec = ChatCodec(make_tokenizer(template, special=FAMILIES[family], bos_token="<bos>"))
    reply = Message(
        role="assistant",
        reasoning="why",
        content="Look: ",
        tool_calls=({"id": "c", "name": "calc", "arguments": '{"e":1}'},) * 2,
    )
    asked = [Message(role="system", content="S"), USER]
    before = codec.render_text(asked, [TOOL])
    after = codec.render_text([*asked, reply, Message(role="tool", content="4", tool_call_id="c")], [TOOL])
    call = '<tool_call>\n{"name": "calc", "arguments": {"e":1}}\n</tool_call>'
    said = f"<think>\nwhy\n</think>\n\nLook: \n{call}\n{call}"
    assert after.startswith(before + said), "what is said after the prompt is what the next prompt shows"
    assert codec.parse(codec.encode(said)) == Message(
        role="assistant",
        reasoning="why",
        content="Look: ",
        tool_calls=({"name": "calc", "arguments": '{"e":1}'},) * 2,
    )
    assert "<tool_response>\n4\n</tool_response>" in after
    assert after.endswith(before[-len(FAMILIES[family][0]) :])


def test_a_template_without_tools_gets_the_shipped_one(make_tokenizer: MakeTokenizer, plain_template: str) -> None:
    codec = ChatCodec(make_tokenizer(plain_template))
    assert codec.render_text([USER]) == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    shown = codec.render_text([Message(role="system", content="Be brief."), *TOOL_TURN], [TOOL])
    assert shown.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert json.dumps(TOOL, ensure_ascii=False) in shown
    assert shown.endswith(
        '<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{"name": "calc", "arguments": '
        '{"expr": "2+2"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert "<tool_response>\n4\n" in codec.render_text(TOOL_TURN), "without the list of tools, results are still shown"


def test_no_tool_template_without_chatml(make_tokenizer: MakeTokenizer) -> None:
    directory = make_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}", special=("</s>",))
    codec = ChatCodec(directory)
    with pytest.raises(TemplateError, match="cannot express tools"):
        codec.render([USER], [TOOL])


def test_named_and_given_templates(make_tokenizer: MakeTokenizer, tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with {{ tools | length }}"}]
    codec = ChatCodec(make_tokenizer(named))
    assert codec.render_text([USER]) == "plain"
    assert codec.render_text([USER], [TOOL]) == "with 1"
    (tmp_path / "model" / "chat_template.jinja").write_text("from a file")
    assert ChatCodec(tmp_path / "model").render_text([USER]) == "from a file"
    assert (
        ChatCodec(tmp_path / "model", chat_template="given {{ eos_token }}").render_text([USER]) == "given <|im_end|>"
    )
    (tmp_path / "mine.jinja").write_text("mine")
    assert ChatCodec(tmp_path / "model", chat_template=tmp_path / "mine.jinja").render_text([USER]) == "mine"
    with pytest.raises(TokenizerError, match=r"absent\.jinja"):
        ChatCodec(tmp_path / "model", chat_template="absent.jinja")


def test_a_template_that_raises_is_named(make_tokenizer: MakeTokenizer) -> None:
    codec = ChatCodec(make_tokenizer("{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(TemplateError, match=r"roles: user.*roles must alternate"):
        codec.render([USER])
    with pytest.raises(TemplateError):
        ChatCodec(make_tokenizer("{{ messages[3].content.nothing }}")).render([USER])
    with pytest.raises(TemplateError, match="not valid Jinja"):
        ChatCodec(make_tokenizer("{% for %}"))


def test_templates_cannot_reach_python(make_tokenizer: MakeTokenizer) -> None:
    with pytest.raises(TemplateError):
        ChatCodec(make_tokenizer("{{ ''.__class__.__mro__[1].__subclasses__() }}")).render([USER])


def test_what_is_missing_is_named(make_tokenizer: MakeTokenizer, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no model directory"):
        ChatCodec(tmp_path / "nowhere")
    with pytest.raises(TokenizerError, match="no chat template"):
        ChatCodec(make_tokenizer(None))
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="could not be read"):
        ChatCodec(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        ChatCodec(tmp_path / "model")


def test_stop_ids_come_from_settings_and_template(make_tokenizer: MakeTokenizer) -> None:
    directory = make_tokenizer(eos_token="</think>")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    codec = ChatCodec(directory)
    ends = {int(codec.encode(text)[0]) for text in ("</think>", "<|im_end|>")}
    assert codec.stop_ids == {7, 9} | ends


def test_a_saved_codec_is_the_same(make_tokenizer: MakeTokenizer, tmp_path: Path) -> None:
    codec = ChatCodec(make_tokenizer(), chat_template="mine {{ messages[0].content }}")
    (tmp_path / "copy").mkdir()
    codec.save(tmp_path / "copy")
    copy = ChatCodec(tmp_path / "copy")
    assert copy.fingerprint() == codec.fingerprint()
    assert copy.stop_ids == codec.stop_ids


def test_no_torch_is_imported() -> None:
    code = "import sys, lightning_lab.tokens; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False"] * 2
