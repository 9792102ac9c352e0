"""Contract 2 with real tokenizers: wherever the text is the same, the sampled ids come back.

lightning-lab tokenizers && pytest -m tokenizers tests/python/gateway
"""

from __future__ import annotations

import importlib.util
import random
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lightning_lab.tokens import ChatCodec, tokenizer_directory

CONVERSATIONS = 1000
NAMES = ["smollm2", "qwen3", "llama3", "deepseek_v3", "gemma3"]


@cache
def codec_of(name: str) -> ChatCodec:
    return ChatCodec(tokenizer_directory(name))


@pytest.fixture(scope="module")
def stitching() -> ModuleType:
    """``benchmarks/stitching.py``: the same conversations are measured there."""
    spec = importlib.util.spec_from_file_location(
        "stitching", Path(__file__).parents[3] / "benchmarks" / "stitching.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stitching"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.tokenizers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_no_chain_of_ids_breaks_where_the_text_is_the_same(stitching, name):
    codec = codec_of(name)
    drift = stitching.measure(codec, CONVERSATIONS)
    assert drift.breaks == 0
    assert drift.changed_text == 0
    assert drift.breaks_unstitched > 500, "without stitching these conversations do break"
    assert drift.continued == 3 * CONVERSATIONS
    assert drift.template < drift.continued / 2
    assert 0.25 < drift.survived / drift.replies < 0.75


@pytest.mark.tokenizers
@pytest.mark.parametrize("name", NAMES)
def test_what_is_told_of_random_ids_is_what_the_whole_reply_begins_with(name):
    """Characters in pieces, thoughts, and the end of the turn among them."""
    codec, rng = codec_of(name), random.Random(0)
    size, end = codec.vocabulary_size - 400, sorted(codec.stop_ids)[:1]
    told = said_in_all = 0
    for _ in range(100):
        said = [rng.randrange(size) for _ in range(rng.randrange(1, 60))]
        if rng.random() < 0.5:
            said = [*codec.encode("<think>\n"), *said[:20], *codec.encode("\n</think>\n\n"), *said[20:]]
        ids = np.asarray(said + (end if rng.random() < 0.5 else []), np.int32)
        whole, beginning = codec.parse(ids), codec.beginning()
        for part in np.array_split(ids, rng.randrange(1, 20)):
            sure = beginning.read(part)
            assert whole.content.startswith(sure.content) and whole.reasoning.startswith(sure.reasoning)
        told += len(sure.content)
        said_in_all += len(whole.content)
    assert told > 0.7 * said_in_all, "what ends in the middle of a character waits for its rest"
