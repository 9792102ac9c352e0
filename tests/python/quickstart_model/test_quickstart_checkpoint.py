"""The shipped checkpoint: its limits, its tokenizer, and a chat template that calls can be merged under."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from lightning_lab.policy.quickstart.conversations import QUICKSTART_TOOL, TASK_PHRASE
from lightning_lab.records import Message
from lightning_lab.tokens import ChatCodec

QUESTION = Message(role="user", content=TASK_PHRASE.format(expr="12 + 7 - 3"))
CALLED = '<tool_call>\n{"name": "calc", "arguments": {"expr": "12 + 7 - 3"}}\n</tool_call>'


def test_stays_within_the_promised_size(checkpoint: Path) -> None:
    files = [path for path in checkpoint.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 3_000_000
    with safe_open(checkpoint / "model.safetensors", "numpy") as weights:
        assert sum(weights.get_tensor(name).size for name in weights.keys()) <= 1_000_000  # noqa: SIM118


def test_is_a_qwen2_with_heads_that_vllm_serves(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["hidden_size"] // config["num_attention_heads"] == 64
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["max_position_embeddings"] >= 1024


def test_tokenizer_is_small_and_splits_digits(codec: ChatCodec, checkpoint: Path) -> None:
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) <= 1024
    assert [codec.decode(np.array([i])) for i in codec.encode("1024 - 768")] == [*list("1024"), " - ", *list("768")]


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_every_text_survives_encoding(codec: ChatCodec, text: str) -> None:
    assert codec.decode(codec.encode(text)) == text


def test_transformers_and_the_codec_agree_on_ids(codec: ChatCodec, checkpoint: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    text = codec.render_text([QUESTION, Message(role="assistant", content="It's 16, café 😀")], [QUICKSTART_TOOL])
    assert tokenizer(text)["input_ids"] == codec.encode(text).tolist()


def test_second_call_extends_the_first(codec: ChatCodec) -> None:
    """One rollout becomes one sample: the second prompt starts with the first one and what was sampled."""
    sampled = codec.encode(CALLED + "<|im_end|>")
    reply = codec.parse(sampled)
    assert [dict(call)["arguments"] for call in reply.tool_calls] == ['{"expr": "12 + 7 - 3"}']
    first = codec.render([QUESTION], [QUICKSTART_TOOL])
    result = Message(role="tool", content="16", tool_call_id="call_1")
    second = codec.render([QUESTION, reply, result], [QUICKSTART_TOOL])
    held = np.concatenate([first, sampled])
    assert second[: len(held)].tolist() == held.tolist()


@pytest.mark.parametrize(
    "arguments",
    ['{"expr": "12 + 7 - 3"}', '{"expr": "12 \\" + 1"}', '{"expr": "é 😀"}', "{}", '{"a": 1, "b": [true, null]}'],
)
def test_arguments_are_rendered_as_they_were_said(codec: ChatCodec, arguments: str) -> None:
    said = Message(role="assistant", tool_calls=({"id": "c", "name": "calc", "arguments": arguments},))
    text = codec.render_text([QUESTION, said, Message(role="tool", content="", tool_call_id="c")], [QUICKSTART_TOOL])
    assert f'<tool_call>\n{{"name": "calc", "arguments": {arguments}}}\n</tool_call><|im_end|>\n' in text


def test_the_template_ignores_how_a_client_orders_or_extends_a_tool(codec: ChatCodec) -> None:
    function = QUICKSTART_TOOL["function"]
    shuffled = {"function": {**dict(reversed(function.items())), "strict": True}, "type": "function"}
    assert codec.render_text([QUESTION], [shuffled]) == codec.render_text([QUESTION], [QUICKSTART_TOOL])


def test_system_prompt_and_several_results_fit_the_template(codec: ChatCodec) -> None:
    calls = tuple({"id": i, "name": "calc", "arguments": "{}"} for i in "ab")
    results = [Message(role="tool", content=text, tool_call_id=i) for i, text in (("a", "1"), ("b", "2"))]
    conversation = [Message(role="system", content="Be brief."), QUESTION, Message(role="assistant", tool_calls=calls)]
    text = codec.render_text([*conversation, *results], [QUICKSTART_TOOL])
    assert text.startswith("<|im_start|>system\nBe brief.\n<tools>\n{")
    assert "\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n" in text
    assert text.count("Be brief.") == 1
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_the_agent_library_sends_the_schema_that_was_trained_on() -> None:
    from agents import function_tool

    @function_tool
    def calc(expr: str) -> str:
        """Evaluate an arithmetic expression."""
        return expr

    function = QUICKSTART_TOOL["function"]
    assert (calc.name, calc.description) == (function["name"], function["description"])
    assert json.dumps(calc.params_json_schema) == json.dumps(function["parameters"])
