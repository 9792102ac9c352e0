"""Contract 2 with real tokenizers: wherever the text is the same, the sampled ids come back.

lightning-lab tokenizers && pytest -m tokenizers tests/python/gateway
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lightning_lab.tokens import ChatCodec, tokenizer_directory

CONVERSATIONS = 1000


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
@pytest.mark.parametrize("name", ["smollm2", "qwen3", "llama3", "deepseek_v3", "gemma3"])
def test_no_chain_of_ids_breaks_where_the_text_is_the_same(stitching, name):
    codec = ChatCodec(tokenizer_directory(name))
    drift = stitching.measure(codec, CONVERSATIONS)
    assert drift.breaks == 0
    assert drift.changed_text == 0
    assert drift.breaks_unstitched > 500, "without stitching these conversations do break"
    assert drift.continued == 3 * CONVERSATIONS
    assert drift.template < drift.continued / 2
    assert 0.25 < drift.survived / drift.replies < 0.75
