"""Conversations without a server: the same calls as the gateway's, with and without stitching, on real tokenizers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lightning_lab.gateway.drift import Turn, converse, respelled
from lightning_lab.records import Message
from lightning_lab.samples import build_samples
from lightning_lab.tokens import ChatCodec, tokenizer_directory

ARGUMENTS = '{"command":  "return the files" }'
SAID = f'Reading the directory listing.\n<tool_call>\n{{"name": "bash", "arguments": {ARGUMENTS}}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "bash", "description": "", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return ChatCodec(tokenizer_directory("qwen3"))


def conversation(codec: ChatCodec, arguments: str, *, parses_arguments: bool = False) -> list[Turn]:
    question = Message(role="user", content="What is here?")
    call = {"id": "call_7", "name": "bash", "arguments": arguments}
    echo = Message(role="assistant", content="Reading the directory listing.", tool_calls=(call,))
    answer = Message(role="tool", content="calc.py", tool_call_id="call_7")
    first = Turn(messages=[question], said=respelled(codec, SAID + "<|im_end|>"), minted=["call_7"], tools=[TOOL])
    second = Turn(
        messages=[question, echo, answer], said=codec.encode("A file.<|im_end|>"), tools=[TOOL],
        parses_arguments=parses_arguments,
    )  # fmt: skip
    return [first, second]


@pytest.mark.tokenizers
def test_stitching_repairs_spelling_and_leaves_text_alone(codec: ChatCodec) -> None:
    faithful = conversation(codec, ARGUMENTS)
    plain, stitched = converse(codec, faithful, stitching=False), converse(codec, faithful)
    assert [str(b.cause) for b in build_samples(plain, codec.decode).breaks] == ["retokenized"]
    assert len(build_samples(stitched, codec.decode).samples) == 1
    assert codec.decode(plain[1].prompt_ids) == codec.decode(stitched[1].prompt_ids)
    (call,) = stitched[0].reply.tool_calls
    assert (call["id"], call["arguments"]) == ("call_7", ARGUMENTS)


@pytest.mark.tokenizers
def test_what_a_harness_wrote_anew_stays_as_it_wrote_it(codec: ChatCodec) -> None:
    compact = '{"command":"return the files"}'
    for stitching in (False, True):
        calls = converse(codec, conversation(codec, compact), stitching=stitching)
        assert [str(b.cause) for b in build_samples(calls, codec.decode).breaks] == ["tool_args"]
        assert compact in codec.decode(calls[1].prompt_ids)
    values = converse(codec, conversation(codec, compact, parses_arguments=True))
    assert build_samples(values, codec.decode).breaks == [], "a protocol of values cannot carry the characters"


@pytest.mark.tokenizers
def test_respelled_text_decodes_to_itself(codec: ChatCodec) -> None:
    said = respelled(codec, SAID)
    assert codec.decode(said) == SAID and not np.array_equal(said, codec.encode(SAID))
    assert np.array_equal(respelled(codec, "a b"), codec.encode("a b"))


def test_there_is_a_capture_for_all_that_was_said() -> None:
    captures = Path(__file__).parents[2] / "data" / "captures"
    said = json.loads((captures / "said.json").read_text("utf-8"))
    names = set(said) - {"note"}
    assert names <= {path.stem for path in captures.glob("*.jsonl")} and len(names) == 7
    assert all(len(said[name]) == 4 for name in names)
